"""What a key does: pseudonyms by HMAC-SHA256, sealing by AES-256-GCM-SIV. The bytes are in reference/ciphertext.md.

Both are functions of the key's version, the value and its place, so a repeated attempt writes the same bytes.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from struct import Struct
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.transforms.rules import KeyRing

MAGIC: Final = b"MLE1"
"""Begins all that is sealed; its digit is the version of the format."""
TEXT: Final = "mle1:"
"""Begins it as text."""
HEADER_BYTES: Final = 8
"""Magic and key version; they are authenticated too."""
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16

_REST: Final = HEADER_BYTES + NONCE_BYTES
_place = Struct(">iq").pack

# A quote inside a JSON string stands behind a backslash, and one that begins a string never does.
_IN_JSON: Final = re.compile(rb'(?<!\\)"(mle1:[\w-]+)"(?!\s*:)')


class CannotOpen(MirrorlessError):
    """It is not sealed, or not by a version of this key, or it was changed."""


class Sealer:
    """Seals values of one source topic by the version of the key that is in use.

    The nonce is of the value's place. Where two values share one, a log made anew, whoever reads the ciphertexts sees
    whether they are equal, and no more: that is what SIV is for.
    """

    def __init__(self, ring: KeyRing, topic: str) -> None:
        """Raises ConfigurationError: OpenSSL has no AES-GCM-SIV."""
        material = ring.material[ring.version]
        name = topic.encode()
        self._header = MAGIC + ring.version.to_bytes(4, "big")
        self._topic = len(name).to_bytes(2, "big") + name
        self._nonces = _keyed(material, b"mirrorless nonce")
        self._cipher = _cipher(material)

    def seal(self, plain: bytes, partition: int, offset: int, path: str) -> bytes:
        """Header, nonce, ciphertext and tag: 36 bytes more than the value. Paths tell the values of a record apart."""
        nonces = self._nonces.copy()
        nonces.update(b"%b%b%b" % (self._topic, _place(partition, offset), path.encode()))
        nonce = nonces.digest()[:NONCE_BYTES]
        return self._header + nonce + self._cipher.encrypt(nonce, plain, self._header)


def pseudonym(ring: KeyRing, value: bytes) -> str:
    """43 letters, digits, `-` and `_`: the same for the same value and version of the key."""
    mac = _keyed(ring.material[ring.version], b"mirrorless hmac").copy()
    mac.update(value)
    return _base64(mac.digest())


def sealed_text(sealed: bytes) -> str:
    """Sealed bytes as a string's text."""
    return TEXT + _base64(sealed)


def opened(sealed: bytes | str, *materials: Mapping[int, bytes]) -> bytes:
    """What was sealed, given as bytes or as text.

    Args:
        sealed: a whole value, a header or a text.
        materials: of each key that it may be sealed by, 32 bytes by version.

    Raises:
        CannotOpen: the words have versions and lengths, never a value.
    """
    raw = _raw(sealed)
    header, nonce, rest = raw[:HEADER_BYTES], raw[HEADER_BYTES:_REST], raw[_REST:]
    version = int.from_bytes(header[len(MAGIC) :], "big")
    for material in materials:
        # Only trying shows by which of the keys that have such a version.
        with suppress(InvalidTag):
            if version in material:
                return _cipher(material[version]).decrypt(nonce, rest, header)
    known = sorted({each for material in materials for each in material})
    raise CannotOpen(
        f"no key that was given opens it: it was sealed by version {version} of one, or it was changed since",
        hint=f"look which key the rule names; versions {', '.join(map(str, known)) or '(none)'} were given",
    )


def opened_json(value: bytes, *materials: Mapping[int, bytes]) -> bytes:
    """A JSON document in which each sealed text is again what it was, a number too; all else keeps its bytes.

    Raises:
        CannotOpen: one of them cannot be opened.
    """
    return _IN_JSON.sub(lambda found: opened(found[1], *materials), value)


def _raw(sealed: bytes | str) -> bytes:
    given = sealed.encode() if isinstance(sealed, str) else sealed
    if given.startswith(TEXT.encode()):
        text = given[len(TEXT) :].rstrip()  # a file, or a console's line, may end so
        try:
            given = b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)
        except ValueError as exc:
            raise CannotOpen("what follows mle1: is not base64") from exc
    if not given.startswith(MAGIC) or len(given) < _REST + TAG_BYTES:
        raise CannotOpen(f"{len(given)} bytes that are not sealed: they would begin with MLE1 or mle1:")
    return given


def _base64(value: bytes) -> str:
    return urlsafe_b64encode(value).rstrip(b"=").decode()


@lru_cache(maxsize=64)
def _keyed(material: bytes, use: bytes) -> hmac.HMAC:
    """An HMAC by the sub-key for a use, which is copied and never fed: half the price of a new one."""
    return hmac.new(hmac.digest(material, use, "sha256"), digestmod="sha256")


@lru_cache(maxsize=64)
def _cipher(material: bytes) -> AESGCMSIV:
    try:
        return AESGCMSIV(hmac.digest(material, b"mirrorless encrypt", "sha256"))
    except UnsupportedAlgorithm as exc:
        raise ConfigurationError(
            "the OpenSSL of this machine has no AES-GCM-SIV",
            where="encrypt",
            hint="install the wheel of `cryptography`, which brings OpenSSL 3.2 or newer",
        ) from exc
