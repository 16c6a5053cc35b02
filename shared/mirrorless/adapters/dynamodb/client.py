"""A DynamoDB client that survives freeze and thaw; its failures are raised as this project's errors.

It is called page by page, on a condition, and again for what DynamoDB leaves undone inside a successful answer. boto3
repeats a call that failed as a whole. A call of which parts were throttled is a success to it: single statements,
unprocessed keys and items.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from mirrorless.adapters.dynamodb.direct import COLLISION, DirectClient, direct_client, line_of_environment
from mirrorless.clock import Deadline
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


PATIENCE_SECONDS: Final = 30.0
"""Of tries without a deadline, or with a later one."""

MARGIN_SECONDS: Final = 0.5
"""Kept of every deadline, to raise an error before Lambda kills the process."""

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


def tries(deadline: Deadline | None, *, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Yield before each try: at once, then after pauses that grow, with full jitter, while there is time.

    Args:
        deadline: seconds left.
        seconds: after which no further try begins, whatever the deadline is.
    """
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    yield
    while True:
        left = end - time.monotonic()
        if deadline is not None:
            left = min(left, deadline() - MARGIN_SECONDS)
        if left <= 0:
            return
        time.sleep(min(left, random.uniform(0, pause)))  # only time gives a table capacity # noqa: S311 -- jitter
        pause = min(2 * pause, _LONGEST_PAUSE)
        yield


def pages(what: str, where: str, call: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The items of a query or a scan, page by page. Args: call: makes it, from where it is told on."""
    begins: dict[str, Any] = {}
    while True:
        with translated(what, where):
            answer = call(**begins)
        yield from answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return
        begins = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


def batches(
    what: str,
    where: str,
    table: str,
    keys: Sequence[Any],
    call: Callable[..., Any],
    *,
    deadline: Deadline | None = None,
) -> Iterator[dict[str, Any]]:
    """The answers to a BatchGetItem, until DynamoDB leaves no key for another one.

    Raises:
        Retriable: it keeps leaving some, or does not answer.
    """
    for _ in tries(deadline):
        with translated(what, where):
            answer = call(RequestItems={table: {"Keys": keys, "ConsistentRead": True}})
        yield answer
        keys = answer.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
        if not keys:
            return
    raise Retriable("DynamoDB keeps leaving keys unread: it is throttled", where=where)


def unless_unmet(call: Callable[..., Any], **request: Any) -> dict[str, Any] | None:
    """The answer to a conditional write; None where its condition does not hold."""
    try:
        answer: dict[str, Any] = call(**request)
    except ClientError as exc:
        if code_of(exc) != COLLISION:
            raise
        return None
    return answer


def code_of(exc: ClientError) -> str:
    """Of an error, in DynamoDB's words."""
    return str(exc.response.get("Error", {}).get("Code", ""))
