"""Secrets, read once per execution environment and rotation interval by Powertools."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from mirrorless.errors import ConfigurationError, Retriable

MAX_AGE_SECONDS = 300
"""How long a warm environment trusts a secret it has read; a rotation is noticed by then."""


def read_secret(name: str) -> str:
    """The secret's text.

    Raises:
        Retriable: when Secrets Manager does not give it.
    """
    # Flows without secrets must not pay for this import.
    from aws_lambda_powertools.utilities import parameters  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    try:
        return parameters.get_secret(name, max_age=MAX_AGE_SECONDS)
    except (parameters.GetParameterError, BotoCoreError) as exc:  # the latter: no region is set
        raise Retriable(
            f"Secrets Manager did not give the secret: {exc}",
            where=name,
            hint="check the secret's name and region, and that the function may read and decrypt it",
        ) from exc


def secret_object(name: str) -> Mapping[str, Any]:
    """The members of a secret.

    Raises:
        ConfigurationError: it is no JSON object.
        Retriable: as `read_secret`.
    """
    try:
        secret = json.loads(read_secret(name))
    except ValueError as exc:
        raise ConfigurationError("the secret is not a JSON object", where=name) from exc
    if not isinstance(secret, dict):
        raise ConfigurationError("the secret is not a JSON object", where=name)
    return secret


def secret_member(name: str, member: str) -> str:
    """A text of a secret. Raises as `secret_object`; ConfigurationError too: it is not there."""
    value = secret_object(name).get(member)
    if not isinstance(value, str) or not value:
        raise ConfigurationError(
            f"the secret has no {member!r}", where=name, hint="store it as Lambda's Kafka mapping wants it"
        )
    return pem(value)


def pem(value: str) -> str:
    """A PEM text that went through a shell often has its line ends spelt out; librdkafka then finds no PEM in it."""
    return value.replace("\\n", "\n") if value.startswith("-----BEGIN") else value


def forget_secrets() -> None:
    """Read every secret anew the next time: one was refused, and may have been mended since it was read."""
    if parameters := sys.modules.get("aws_lambda_powertools.utilities.parameters"):
        parameters.clear_caches()
