"""A DynamoDB client that survives freeze and thaw; its failures are raised as this project's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from mirrorless.adapters.dynamodb.direct import DirectClient, direct_client, line_of_environment
from mirrorless.errors import Retriable

READ_SECONDS: Final = 5
"""A connection that died while the environment was frozen must be noticed long before Lambda's deadline."""


def dynamodb_client(region: str | None = None, role_arn: str | None = None, *, direct: bool = False) -> Any:
    """A client for the region, by the usual credentials; `AWS_ENDPOINT_URL_DYNAMODB` points it at a local one.

    Args:
        region: of the tables; by default the environment's.
        role_arn: to act as, where the tables are in another account: `FlowSettings.tables_role`.
        direct: whether an event's calls are tried without boto3 first, see `direct.py`.
    """
    line = line_of_environment(region, READ_SECONDS) if direct and not role_arn else None
    if line is not None:
        return DirectClient(partial(_made_by_boto3, region, role_arn), line)
    return _made_by_boto3(region, role_arn, direct=direct)


def _made_by_boto3(region: str | None, role_arn: str | None, *, direct: bool = False) -> Any:
    # Half of a cold start, for what a forwarder needs only where a call fails.
    import boto3  # noqa: PLC0415 -- see above
    from botocore.config import Config  # noqa: PLC0415 -- see above

    from mirrorless.adapters.aws.assumed_role import session_as  # noqa: PLC0415 -- it imports boto3

    config = Config(
        connect_timeout=2,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 4},
        tcp_keepalive=True,
        parameter_validation=False,  # our requests have one shape each, held by tests; checking them costs CPU
    )
    session = session_as(role_arn) if role_arn else boto3.Session()
    client = session.client("dynamodb", region_name=region or None, config=config)
    return direct_client(client, session.get_credentials()) if direct else client


@contextmanager
def translated(what: str, where: str) -> Iterator[None]:
    """Turn botocore's errors into `Retriable`: a conditional failure is handled before it gets here."""
    try:
        yield
    except ClientError as exc:
        code = exc.response.get("Error", {}).get("Code", "")
        hint = {
            "ResourceNotFoundException": "deploy the state stack of the target's region",
            "AccessDeniedException": "grant the function access to the flow's tables",
        }.get(code, "")
        raise Retriable(f"DynamoDB refused to {what}: {exc}", where=where, hint=hint) from exc
    except BotoCoreError as exc:
        raise Retriable(f"DynamoDB did not answer to {what}: {exc}", where=where) from exc
