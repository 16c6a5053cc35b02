"""Whose credentials does the operator use? Asked where there are two accounts to choose from.

Tables in another account than the functions are reached by a role, and only the functions may be it. An operator needs
credentials of the tables' own account: who repairs a flow is then known there by name, and has the rights given there.
"""

from __future__ import annotations

from mirrorless.errors import ConfigurationError
from mirrorless.lane import FlowName


def require_account(account: str, name: FlowName) -> None:
    """Make sure that the usual credentials are of the account that keeps a flow's tables.

    Raises:
        ConfigurationError: they are of another one, or there are none.
    """
    import boto3  # noqa: PLC0415 -- costs half a second
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 -- same

    hint = f"use a profile of account {account}: AWS_PROFILE=…"
    try:
        # Any region's STS will do; it needs no permission.
        theirs = boto3.client("sts", region_name=boto3.Session().region_name or "us-east-1").get_caller_identity()
    except (BotoCoreError, ClientError) as exc:
        raise ConfigurationError(
            f"whose credentials these are cannot be told: {exc}", where=str(name), hint=hint
        ) from exc
    if theirs["Account"] != account:
        what = f"its tables are in account {account}, and these credentials are of {theirs['Account']}"
        raise ConfigurationError(what, where=str(name), hint=hint)
