"""Secrets, read once per execution environment and rotation interval by Powertools."""

from __future__ import annotations

import sys

from mirrorless.errors import Retriable

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


def forget_secrets() -> None:
    """Read every secret anew the next time: one was refused, and may have been mended since it was read."""
    if parameters := sys.modules.get("aws_lambda_powertools.utilities.parameters"):
        parameters.clear_caches()
