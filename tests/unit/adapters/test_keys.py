"""Material of keys, from the Secrets Manager and the KMS of moto, and from a lab's folder."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError
from msgspec.structs import replace

from mirrorless.adapters.aws import secrets
from mirrorless.adapters.aws.keys import encryption_context, read_keys
from mirrorless.errors import ConfigurationError, MirrorlessError, Retriable
from mirrorless.transforms.rules import KeyRing, KeySettings

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
TEXT = {str(version): b64encode(material).decode() for version, material in ((1, ONE), (2, TWO))}

pytestmark = pytest.mark.usefixtures("aws")


@pytest.fixture(autouse=True)
def _nothing_cached() -> None:
    secrets.forget_secrets()


def in_secret(content: Any, version: int = 2) -> KeySettings:
    text = content if isinstance(content, str) else json.dumps(content)
    boto3.client("secretsmanager").create_secret(Name="proof/pii", SecretString=text)
    return KeySettings(version, "proof/pii")


def by_kms(*data_keys: bytes, name: str = "pii", version: int = 1) -> KeySettings:
    kms = boto3.client("kms", region_name="us-east-1")  # another region than the process has: the ARN says it
    arn = kms.create_key()["KeyMetadata"]["Arn"]
    sealed = [
        kms.encrypt(KeyId=arn, Plaintext=each, EncryptionContext=encryption_context(name))["CiphertextBlob"]
        for each in data_keys
    ]
    texts = {str(at): b64encode(each).decode() for at, each in enumerate(sealed, 1)}
    return KeySettings(version=version, kms_key_arn=arn, data_keys=texts)


def of(settings: KeySettings, version: int) -> KeySettings:
    return replace(settings, version=version)


def test_a_ring_has_the_version_that_is_asked_for() -> None:
    keys = {"pii": in_secret(TEXT), "pci": by_kms(ONE, TWO, name="pci")}

    assert read_keys(keys) == {"pii": KeyRing(2, {2: TWO}), "pci": KeyRing(1, {1: ONE})}
    assert read_keys({name: of(each, 3 - each.version) for name, each in keys.items()}) == {
        "pii": KeyRing(1, {1: ONE}),
        "pci": KeyRing(2, {2: TWO}),
    }


def test_a_retired_version_that_cannot_be_read_is_an_error_only_where_it_is_asked_for() -> None:
    of_secret, of_kms = in_secret({**TEXT, "1": 7}), by_kms(ONE, TWO, version=2)
    lost = KeySettings(
        version=2, kms_key_arn=of_kms.kms_key_arn, data_keys={**of_kms.data_keys, "1": b64encode(b"lost").decode()}
    )

    assert read_keys({"pii": of_secret})["pii"].material == {2: TWO}
    assert read_keys({"pii": lost})["pii"].material == {2: TWO}
    for settings in (of_secret, lost):
        with pytest.raises(ConfigurationError, match=r"keys\.pii: .*version 1"):
            read_keys({"pii": of(settings, 1)})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (TEXT, "there is no version 3; there are 1, 2"),
        ({}, "there is no version 3; there are none"),
        ({"3": b64encode(ONE[:31]).decode()}, "version 3 has 31 bytes, and a key has 32"),
        ({"3": "KÖY"}, "version 3 is not base64"),
        ({"3": 12345}, "version 3 is not base64"),
        (["KEY"], "its secret is no JSON object"),
        ("KEY", "its secret is no JSON object"),
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_what_it_has(content: Any, what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_keys({"pii": in_secret(content, version=3)})

    assert str(caught.value).startswith(f"keys.pii: {what} (a retry does not help).")
    assert caught.value.hint
    error: BaseException | None = caught.value
    while error is not None:
        assert not any(each in str(error) for each in ("KEY", "KÖY", "12345", *TEXT.values()))
        error = error.__cause__


def test_a_data_key_belongs_to_its_name_and_to_its_key_of_kms() -> None:
    """Else whoever may change the configuration could have a key of more than he may read opened under another name."""
    settings = by_kms(ONE)
    elsewhere = KeySettings(kms_key_arn=by_kms().kms_key_arn, data_keys=settings.data_keys)
    short = by_kms(ONE[:16])

    for keys, what in (
        ({"other": settings}, r"keys\.other: KMS did not open version 1: .*InvalidCiphertext"),
        ({"pii": elsewhere}, r"keys\.pii: KMS did not open version 1: "),
        ({"pii": short}, r"keys\.pii: version 1 has 16 bytes"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            read_keys(keys)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "x"), ConfigurationError),
        (ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "no"}}, "x"), ConfigurationError),
        (ClientError({"Error": {"Code": "ThrottlingException", "Message": "no"}}, "x"), Retriable),
        (ConnectTimeoutError(endpoint_url="x"), Retriable),
    ],
)
@pytest.mark.parametrize("kept", ["in a secret", "by KMS"])
def test_a_right_that_lacks_is_final_and_a_service_that_does_not_answer_is_not(
    kept: str, answer: Exception, expected: type[MirrorlessError], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = in_secret(TEXT) if kept == "in a secret" else by_kms(ONE)

    def refuse(*_: object, **__: object) -> None:
        raise answer

    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", refuse)

    with pytest.raises(MirrorlessError) as caught:
        read_keys({"pii": settings})

    assert type(caught.value) is expected
    assert (caught.value.where, bool(caught.value.hint)) == ("keys.pii", True)


def test_a_lab_has_its_keys_in_a_folder_whatever_they_are_on_aws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRRORLESS_KEYS", str(tmp_path))
    (tmp_path / "pii.json").write_text(json.dumps(TEXT))

    for settings in (KeySettings(1, "s"), KeySettings(kms_key_arn="arn", data_keys={"1": "AA=="})):
        assert read_keys({"pii": settings})["pii"].material == {1: ONE}
    with pytest.raises(ConfigurationError, match=r"keys\.pci: the lab has no such key"):
        read_keys({"pci": KeySettings(1, "s")})
