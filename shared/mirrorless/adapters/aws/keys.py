"""The material of keys: from a secret, opened by KMS, or from a lab's folder. It is in no error, log or document."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from mirrorless.adapters.aws.secrets import read_secret
from mirrorless.errors import ConfigurationError, MirrorlessError, Retriable
from mirrorless.flow.naming import KEYS_VARIABLE
from mirrorless.transforms.rules import KeyRing, KeySettings

KEY_BYTES: Final = 32

_FINAL: Final = frozenset(
    {"AccessDeniedException", "ResourceNotFoundException", "DecryptionFailure", "InvalidRequestException"}
    | {"NotFoundException", "InvalidCiphertextException", "IncorrectKeyException", "DisabledException"}
    | {"KMSInvalidStateException", "InvalidKeyUsageException", "ValidationException", "InvalidArnException"}
)
"""Answers of Secrets Manager, and of KMS, that stay what they are until somebody changes a right, a key or a secret."""


def read_keys(settings: Mapping[str, KeySettings]) -> dict[str, KeyRing]:
    """The rings of keys by name, each with the version in its settings and no other.

    Raises:
        ConfigurationError: a version is missing, is not 32 bytes, or may not be read; a retry does not help.
        Retriable: the service does not answer.
    """
    return {name: KeyRing(each.version, {each.version: _material(name, each)}) for name, each in settings.items()}


def new_data_key(name: str, arn: str) -> str:
    """32 fresh bytes that nobody has seen, as KMS encrypts them for a key's name, in base64.

    Raises:
        ConfigurationError: KMS refuses it.
        Retriable: it does not answer.
    """
    hint = "check the key's ARN, and that you may kms:GenerateDataKeyWithoutPlaintext with it"
    with _kms(arn, f"keys.{name}", "KMS made no data key", hint) as kms:
        answer = kms.generate_data_key_without_plaintext(
            KeyId=arn, NumberOfBytes=KEY_BYTES, EncryptionContext=encryption_context(name)
        )
    return b64encode(answer["CiphertextBlob"]).decode()


def encryption_context(name: str) -> dict[str, str]:
    """What KMS binds a data key to, and a policy can ask for: the key's name."""
    return {"mirrorless.key": name}


def _material(name: str, settings: KeySettings) -> bytes:
    where, version = f"keys.{name}", settings.version
    as_printed = f"write it as `mirrorless keys new {name}` prints one"
    folder = os.environ.get(KEYS_VARIABLE)
    by_kms = bool(settings.kms_key_arn) and not folder
    known = settings.data_keys if by_kms else _versions(_text(where, settings.secret, name, folder), where)
    given = known.get(str(version))
    if given is None:
        raise ConfigurationError(
            f"there is no version {version}; there are {', '.join(sorted(known)) or 'none'}",
            where=where,
            hint=f"`mirrorless keys new {name} --version {version}` makes one, where it never was; one that sealed "
            "records has to come back from where it was kept",
        )
    try:
        found = b64decode(given, validate=True)
    except (TypeError, ValueError):  # the cause would show it
        raise ConfigurationError(f"version {version} is not base64", where=where, hint=as_printed) from None
    material = _decrypted(name, settings.kms_key_arn, found, version) if by_kms else found
    if len(material) != KEY_BYTES:
        raise ConfigurationError(
            f"version {version} has {len(material)} bytes, and a key has {KEY_BYTES}",
            where=where,
            hint=as_printed,
        )
    return material


def _text(where: str, secret: str, name: str, folder: str | None) -> str:
    try:
        return (Path(folder) / f"{name}.json").read_text() if folder else read_secret(secret)
    except OSError as exc:
        raise ConfigurationError(f"the lab has no such key: {exc}", where=where, hint="start the lab again") from exc
    except Retriable as exc:
        raise _explained(exc, where, exc.what, exc.hint) from exc


def _versions(text: str, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ConfigurationError(
            "its secret is no JSON object", where=where, hint='write it as {"1": "32 bytes in base64"}'
        ) from None


@cache
def _decrypted(name: str, arn: str, data_key: bytes, version: int) -> bytes:
    hint = (
        f"check that version {version} was made by this key of KMS and under this name, that the key is enabled, and "
        "that the role may kms:Decrypt with it"
    )
    with _kms(arn, f"keys.{name}", f"KMS did not open version {version}", hint) as kms:
        answer = kms.decrypt(CiphertextBlob=data_key, KeyId=arn, EncryptionContext=encryption_context(name))
    return bytes(answer["Plaintext"])


@contextmanager
def _kms(arn: str, where: str, what: str, hint: str) -> Iterator[Any]:
    """A client of KMS in the key's region; its errors are explained."""
    import boto3  # noqa: PLC0415 -- a key in a secret needs no client of KMS
    from botocore.config import Config  # noqa: PLC0415 -- same
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 -- same

    config = Config(connect_timeout=2, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 4})
    try:
        yield boto3.client("kms", region_name=arn.split(":")[3], config=config)
    except (BotoCoreError, ClientError) as exc:
        raise _explained(exc, where, f"{what}: {exc}", hint) from exc


def _explained(error: BaseException, where: str, what: str, hint: str) -> MirrorlessError:
    """The error to raise, by the code that AWS answered."""
    cause: BaseException | None = error
    while cause is not None and not hasattr(cause, "response"):
        cause = cause.__cause__ or cause.__context__  # Powertools names no cause
    code = cause.response["Error"]["Code"] if cause is not None else ""
    return (ConfigurationError if code in _FINAL else Retriable)(what, where=where, hint=hint)
