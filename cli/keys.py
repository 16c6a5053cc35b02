"""`mirrorless keys new` and `mirrorless decrypt`: a new version of a key, and what a rule has sealed, opened."""

from __future__ import annotations

import argparse
import base64
import json
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.args import BadInput, add_deployment, whole
from cli.deployment import DeployedFlows
from cli.output import print_json, say, write
from mirrorless.errors import ConfigurationError

if TYPE_CHECKING:
    from mirrorless.transforms.rules import KeySettings


_VERSION: Final = whole("a version", 65_535, least=1)
"""That the configuration takes."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `keys new` and `decrypt`."""
    keys = subparsers.add_parser("keys", help="make a version of a key of `transforms`")
    new = keys.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "new",
        help="make 32 bytes, and print what to put into the secret and into the configuration; nothing else is written",
        epilog="Example: mirrorless keys new pii --version 2",
    )
    new.add_argument("name", metavar="NAME", help="of the key under `keys`")
    new.add_argument("--version", metavar="N", type=_VERSION, default=1, help="the next one, to rotate it (default: 1)")
    kept = new.add_mutually_exclusive_group()
    kept.add_argument("--secret", metavar="SECRET", help="its secret in Secrets Manager (default: mirrorless/NAME)")
    kept.add_argument(
        "--kms", metavar="ARN", type=_arn, help="instead a data key that this key of KMS opens, and nobody has seen"
    )
    new.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    new.set_defaults(run=run_new)

    decrypt = subparsers.add_parser(
        "decrypt",
        help="open what `encrypt` has sealed: in JSON, in lines of it, or in one value or header as it is",
        epilog="Example: mirrorless decrypt value.json",
    )
    decrypt.add_argument(
        "file", metavar="FILE", nargs="?", default="-", help="a file with it (default: the standard input)"
    )
    decrypt.add_argument("--base64", action="store_true", help="what is given is in base64")
    add_deployment(decrypt, run_decrypt)


def run_new(arguments: argparse.Namespace) -> int:
    """Print a fresh version of a key."""
    from mirrorless.config.key_edits import block  # noqa: PLC0415 -- other commands need no YAML

    version, secret = str(arguments.version), None
    if arguments.kms:
        from mirrorless.adapters.aws.keys import new_data_key  # noqa: PLC0415 -- boto3 costs half a second

        data_keys = {version: new_data_key(arguments.name, arguments.kms)}
        key = {"version": arguments.version, "kms.key.arn": arguments.kms, "data.keys": data_keys}
    else:
        key = {"version": arguments.version, "secret": arguments.secret or f"mirrorless/{arguments.name}"}
        secret = {version: base64.b64encode(secrets.token_bytes(32)).decode()}
    if arguments.json:
        print_json({"secret": secret, "keys": {arguments.name: key}})
        return 0
    if secret:
        say(f"# The secret {key['secret']}, beside the versions that it has:", json.dumps(secret), "")
    say(f"# The configuration{'' if secret else ', beside the data keys that it has'}:")
    say(*block({"keys": {arguments.name: key}}).splitlines())
    return 0


def run_decrypt(arguments: argparse.Namespace) -> int:
    """Write what is opened to the standard output, and nothing else."""
    from cli.jobs.commands import environment  # noqa: PLC0415 -- same
    from mirrorless.transforms.ciphers import MAGIC, TEXT, CannotOpen, opened, opened_json  # noqa: PLC0415 -- same

    deployment = DeployedFlows.of(arguments)
    written = {name: key for flow in deployment.configuration.flows.values() for name, key in flow.keys.items()}
    keys = [_Versions(name, key.settings()) for name, key in written.items()]
    content = _given(arguments)
    alone = content.startswith((MAGIC, TEXT.encode()))
    try:
        with environment(deployment.job_variables()):  # a lab has its keys in a folder
            found = opened(content, *keys) if alone else opened_json(content, *keys)
    except CannotOpen as exc:
        missing = "; ".join(f"{key.error.where}: {key.error.what}" for key in keys if key.error)
        raise CannotOpen(exc.what, where=arguments.file, hint=missing or exc.hint) from exc
    if arguments.json:
        print_json({"base64": base64.b64encode(found).decode()})
    else:
        write(found)
    return 0


class _Versions(Mapping[int, bytes]):
    """The versions of a key, each read when a sealed value asks for it."""

    def __init__(self, name: str, settings: KeySettings) -> None:
        self.error: ConfigurationError | None = None
        """Why a version that was asked for could not be read."""
        self._name, self._settings = name, settings
        self._read: dict[int, bytes] = {}

    def __getitem__(self, version: int) -> bytes:
        from msgspec.structs import replace  # noqa: PLC0415 -- same

        from mirrorless.adapters.aws.keys import read_keys  # noqa: PLC0415 -- same

        if version not in self._read:
            try:
                ring = read_keys({self._name: replace(self._settings, version=version)})[self._name]
            except ConfigurationError as exc:  # another key may have this version
                self.error = exc
                raise KeyError(version) from exc
            self._read |= ring.material
        return self._read[version]

    def __iter__(self) -> Iterator[int]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


def _given(arguments: argparse.Namespace) -> bytes:
    try:
        content = sys.stdin.buffer.read() if arguments.file == "-" else Path(arguments.file).read_bytes()
        return base64.b64decode(content) if arguments.base64 else content
    except (OSError, ValueError) as exc:
        raise BadInput(f"what is sealed cannot be read: {exc}", where=arguments.file) from exc


def _arn(text: str) -> str:
    if not re.fullmatch(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/\S+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the ARN of a key: arn:aws:kms:REGION:ACCOUNT:key/ID")
    return text
