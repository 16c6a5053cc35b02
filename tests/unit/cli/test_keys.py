"""New versions of keys, and what they have sealed, opened: by moto's Secrets Manager and KMS."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from mirrorless.adapters.aws.keys import encryption_context, read_keys
from mirrorless.adapters.aws.secrets import forget_secrets
from mirrorless.config import load
from mirrorless.flow.settings import Tables
from mirrorless.transforms.ciphers import Sealer, sealed_text
from mirrorless.transforms.rules import KeyRing
from tests.support.commands import Answer, Command, lab_state, replication_yaml
from tests.support.yaml_text import dump_yaml, load_yaml

ONE, TWO, OTHER = (bytes([each]) * 32 for each in (1, 2, 3))
FLOW = "us-east->eu-west: {topics: [orders], transforms: [{topics: [orders], key: {hmac: pii}}]}"
PII = KeyRing(2, {1: ONE, 2: TWO})
PCI = KeyRing(1, {1: OTHER})

pytestmark = pytest.mark.usefixtures("aws")


def secret(**versions: bytes) -> None:
    text = json.dumps({name.strip("v"): base64.b64encode(each).decode() for name, each in versions.items()})
    boto3.client("secretsmanager").create_secret(Name="mirrorless/pii", SecretString=text)


@pytest.fixture
def arn() -> str:
    return str(boto3.client("kms", region_name="us-east-1").create_key()["KeyMetadata"]["Arn"])


@pytest.fixture
def decrypt(command: Command, tmp_path: Path, arn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """The command, on a configuration with a key in a secret and one by KMS."""
    forget_secrets()
    secret(v1=ONE, v2=TWO)
    kms = boto3.client("kms", region_name="us-east-1")
    data_key = kms.encrypt(KeyId=arn, Plaintext=OTHER, EncryptionContext=encryption_context("pci"))["CiphertextBlob"]
    rule = "{topics: [orders], fields: {a: {encrypt: pii}, b: {encrypt: pci}}}"
    keys = {
        "pii": {"secret": "mirrorless/pii", "version": 2},
        "pci": {"kms.key.arn": arn, "data.keys": {"1": base64.b64encode(data_key).decode()}},
    }
    config = tmp_path / "replication.yaml"
    config.write_text(
        replication_yaml(
            f"us-east->eu-west: {{topics: [orders], transforms: [{rule}]}}", rest=dump_yaml({"keys": keys})
        )
    )

    def run(content: bytes, *words: str) -> Answer:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=SimpleNamespace(read=lambda: content)))
        return command("decrypt", *words, "--config", str(config))

    return run


def sealed(ring: KeyRing, plain: bytes, *, version: int | None = None) -> bytes:
    return Sealer(ring.of(version or ring.version), "orders").seal(plain, 0, 7, "a")


def text(*args: Any, **more: Any) -> str:
    return sealed_text(sealed(*args, **more))


def test_values_of_several_keys_and_versions_are_opened_and_all_else_is_as_it_was(
    decrypt: Callable[..., Answer], tmp_path: Path
) -> None:
    lines = f'{{"a":"{text(PII, b"1.50")}", "b": ["{text(PCI, b"{}")}"]}}\n"{text(PII, b"null", version=1)}"\n'.encode()
    path = tmp_path / "value.json"
    path.write_bytes(lines)

    assert decrypt(lines).out == '{"a":1.50, "b": [{}]}\nnull\n'
    assert decrypt(b"", str(path)).out == decrypt(base64.b64encode(lines), "--base64").out == decrypt(lines).out
    assert decrypt(b'{"a": 1}').out == '{"a": 1}'
    assert decrypt(sealed(PII, b"whole\n")).out == "whole\n"
    assert decrypt(text(PCI, b"of a header").encode() + b"\n").out == "of a header"
    assert json.loads(decrypt(sealed(PII, b"x"), "--json").out) == {"base64": "eA=="}


def test_a_lab_has_its_keys_in_a_folder(command: Command, tmp_path: Path) -> None:
    state = lab_state(tmp_path, FLOW, {}, "http://127.0.0.1:1", Tables(), keys=str(tmp_path))
    (tmp_path / "replication.yaml").write_text(replication_yaml(FLOW, rest="keys: {pii: {secret: none}}"))
    (tmp_path / "pii.json").write_text(json.dumps({"2": base64.b64encode(TWO).decode()}))
    (tmp_path / "value").write_bytes(sealed(PII, b"x"))
    before = dict(os.environ)

    assert command("decrypt", str(tmp_path / "value"), "--lab", str(state)).out == "x"
    assert dict(os.environ) == before


def test_what_cannot_be_opened_is_an_error_that_names_the_key_that_was_missing(decrypt: Callable[..., Answer]) -> None:
    for content, words in (
        (sealed(KeyRing(2, {2: OTHER}), b"x"), "no key that was given opens it: it was sealed by version 2"),
        (
            sealed(KeyRing(9, {9: OTHER}), b"x"),
            "keys.pci: there is no version 9; there are 1; keys.pii: there is no version 9; there are 1, 2",
        ),
        (b"mle1:x", "what follows mle1: is not base64"),
    ):
        answer = decrypt(content)

        assert (answer.code != 0, answer.out) == (True, "")
        assert words in answer.err
    answer = decrypt(b"", "there-is-none.json")
    assert (answer.code, "there-is-none.json: what is sealed cannot be read" in answer.err) == (2, True)


def test_a_key_that_may_not_be_read_matters_only_where_it_is_needed(
    decrypt: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = BaseClient._make_api_call

    def denied(client: BaseClient, operation: str, request: Any) -> Any:
        if operation == "Decrypt":
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, operation)
        return call(client, operation, request)

    monkeypatch.setattr(BaseClient, "_make_api_call", denied)

    assert decrypt(sealed(PII, b"x", version=1)).out == "x"
    answer = decrypt(sealed(PCI, b"x"))
    assert (answer.code, "keys.pci: KMS did not open version 1" in answer.err) == (1, True)


@pytest.mark.parametrize("kept", ["in a secret", "by KMS"])
def test_what_is_printed_of_a_new_version_is_what_the_secret_and_the_configuration_take(
    command: Command, arn: str, kept: str
) -> None:
    words = ("keys", "new", "pii", "--version", "2", *(("--kms", arn) if kept == "by KMS" else ()))
    answer, printed = command(*words, "--json").json, command(*words).out
    if answer["secret"]:
        versions = {f"v{name}": base64.b64decode(each) for name, each in answer["secret"].items()}
        secret(**versions)

    (settings,) = (
        each.all_settings().keys
        for each in load(replication_yaml(FLOW, rest=dump_yaml({"keys": answer["keys"]}))).flows.values()
    )
    material = read_keys(settings)["pii"].material

    assert {version: len(each) for version, each in material.items()} == {2: 32}
    assert load_yaml(printed[printed.index("keys:") :]).keys() == {"keys"}
    assert (json.dumps({"2": ""})[:-2] in printed) == (kept == "in a secret")
    assert command(*words).out != printed, "it is another one each time"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--version", "0"), "'0' is not a version"),
        (("--version", "65536"), "'65536' is not a version"),
        (("--kms", "alias/pii"), "'alias/pii' is not the ARN of a key"),
        (("--kms", "arn:aws:kms:us-east-1:111122223333:key/none"), "keys.pii: KMS made no data key"),
    ],
)
def test_a_version_and_a_key_of_kms_are_checked(command: Command, words: tuple[str, ...], said: str) -> None:
    answer = command("keys", "new", "pii", *words)

    assert (answer.code, said in answer.err) == (2, True)
