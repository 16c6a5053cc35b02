"""How DynamoDB is called: page by page, on a condition, and again for what it leaves undone inside a successful answer.

boto3 repeats a call that failed as a whole. A call of which parts were throttled is a success to it: single statements,
unprocessed keys and items.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from botocore.exceptions import ClientError

from mirrorless.adapters.dynamodb.client import translated
from mirrorless.adapters.dynamodb.direct import COLLISION
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable

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
