"""What a key does to a value. The fixed bytes here are the format: copies made years ago are read by it."""

from __future__ import annotations

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.errors import ConfigurationError
from mirrorless.transforms import ciphers
from mirrorless.transforms.ciphers import CannotOpen, Sealer, opened, opened_json, pseudonym, sealed_text
from mirrorless.transforms.rules import KeyRing

PII = KeyRing(2, {1: bytes(range(32)), 2: bytes(range(32, 64))})
OTHER = KeyRing(2, {2: b"\x07" * 32})
EMAIL = b'"ada@example.com"'
SEALED = Sealer(PII, "customers").seal(EMAIL, 3, 1_234_567_890_123, "customer.email")


@pytest.mark.parametrize(
    ("plain", "additional", "sealed"),
    [  # RFC 8452, appendix C.2
        ("", "", "07f5f4169bbf55a8400cd47ea6fd400f"),
        ("0100000000000000", "", "c2ef328e5c71c83b843122130f7364b761e0b97427e3df28"),
        ("0200000000000000", "01", "1de22967237a813291213f267e3b452f02d01ae33e4ec854"),
    ],
)
def test_the_cipher_is_that_of_rfc_8452(plain: str, additional: str, sealed: str) -> None:
    key, nonce = bytes([1, *bytes(31)]), bytes([3, *bytes(11)])

    assert AESGCMSIV(key).encrypt(nonce, bytes.fromhex(plain), bytes.fromhex(additional)).hex() == sealed


def test_the_format_never_changes() -> None:
    assert SEALED.hex() == (
        "4d4c45310000000212584dc8d1bf275445d855959b8baf542661dedc0c30330ed7fb4a00a77f043440d7d5de16ca3351da2265f2da"
    )
    assert sealed_text(SEALED) == "mle1:TUxFMQAAAAISWE3I0b8nVEXYVZWbi69UJmHe3AwwMw7X-0oAp38ENEDX1d4WyjNR2iJl8to"
    assert pseudonym(PII, b"ada@example.com") == "lc2tdJl2KYNcBsjE1ZY9Zzta-keclkgPKJY3o2naWjo"
    assert pseudonym(PII.of(1), b"ada@example.com") == "-XZtMjWZwOyzUlZhWFtUa6zlErERV8gKy0urRKf8X74"


@given(
    st.binary(max_size=200), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.text(), st.sampled_from([1, 2])
)
def test_what_is_sealed_is_opened_by_all_versions_of_the_key(
    plain: bytes, partition: int, offset: int, path: str, version: int
) -> None:
    sealed = Sealer(PII.of(version), "t").seal(plain, partition, offset, path)

    assert sealed == Sealer(PII.of(version), "t").seal(plain, partition, offset, path), "an attempt again is the same"
    assert len(sealed) == len(plain) + 36
    assert {opened(sealed, PII.material), opened(sealed_text(sealed), OTHER.material, PII.material)} == {plain}


def test_no_two_places_share_a_nonce() -> None:
    places = [
        ("ab", 1, 2, "c"),
        ("a", 1, 2, "bc"),
        ("ab", 2, 1, "c"),
        ("ab", 1, 3, "c"),
        ("ab", 1, 2, ""),
        ("", 1, 2, "abc"),
    ]

    nonces = {Sealer(PII, topic).seal(b"", *place)[8:20] for topic, *place in places}  # type: ignore[arg-type]

    assert len(nonces) == len(places)


@pytest.mark.parametrize("at", [*range(8), 8, 19, 20, len(SEALED) - 1])
def test_no_byte_can_be_changed(at: int) -> None:
    changed = bytearray(SEALED)
    changed[at] ^= 1

    with pytest.raises(CannotOpen):
        opened(bytes(changed), {**PII.material, 3: PII.material[2]})


@pytest.mark.parametrize(
    ("given_", "materials", "words"),
    [
        (SEALED, (OTHER.material,), "no key that was given opens it: it was sealed by version 2 of one"),
        (SEALED, ({1: PII.material[1]},), "versions 1 were given"),
        (SEALED, (), "(none)"),
        (EMAIL, (PII.material,), "17 bytes that are not sealed"),
        (SEALED[:35], (PII.material,), "35 bytes that are not sealed"),
        ("mle1:a", (PII.material,), "not base64"),
        (f"mle1:~~~~{sealed_text(SEALED)[5:]}", (PII.material,), "not base64"),
        ("mle1:YWRh", (PII.material,), "3 bytes that are not sealed"),
    ],
)
def test_what_cannot_be_opened_is_said_without_its_value(
    given_: bytes | str, materials: tuple[dict[int, bytes], ...], words: str
) -> None:
    with pytest.raises(CannotOpen) as caught:
        opened(given_, *materials)

    assert words in str(caught.value)
    assert "ada" not in str(caught.value)


def test_sealed_texts_in_a_document_become_what_they_were_and_all_else_keeps_its_bytes() -> None:
    """A sealed text is a JSON string of its own: not a name, not a part of a string, not behind an escaped quote."""
    number, name = (sealed_text(Sealer(ring, "t").seal(b"1e400", 0, 0, "")).encode() for ring in (PII, OTHER))
    rest = b'"x": "say \\"%b", "%b" : 1.0, "y":"%b ", "z\\\\": 12345678901234567890}' % (number, number, number)

    document = opened_json(b'{"n":"%b", "m": ["%b"],' % (number, name) + rest, PII.material, OTHER.material)

    assert document == b'{"n":1e400, "m": [1e400],' + rest
    with pytest.raises(CannotOpen):
        opened_json(b'["%b"]' % name, PII.material)


def test_an_openssl_without_the_cipher_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(_: bytes) -> None:
        raise UnsupportedAlgorithm("AES-GCM-SIV")

    monkeypatch.setattr(ciphers, "AESGCMSIV", lacking)

    with pytest.raises(ConfigurationError, match="no AES-GCM-SIV"):
        Sealer(KeyRing(1, {1: b"\xfe" * 32}), "t")  # of no other test: ciphers are kept
