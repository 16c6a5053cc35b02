"""Refusals in the words of DynamoDB, which DynamoDB Local never gives: whole calls, and parts inside a success.

Pure: requests and answers are decoded JSON. Shapes are those of the API reference and of botocore's model: the errors
that each operation names, `UnprocessedKeys`, `UnprocessedItems`. Status and type of an error:
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

Json = dict[str, Any]

OPERATIONS_OF_PARTS: Final = frozenset({"BatchGetItem", "BatchWriteItem"})
"""Operations of which single parts may fail."""

_SERVICE: Final = "com.amazonaws.dynamodb.v20120810#"
_THROTTLED: Final = (
    "The level of configured provisioned throughput for the table was exceeded. "
    "Consider increasing your provisioning level with the UpdateTable API."
)
_BROKEN: Final = "Internal server error"


def throttled_call() -> tuple[int, Json]:
    """Status and body of an answer to a call that exceeds a table's throughput, before anything is carried out."""
    return 400, {"__type": f"{_SERVICE}ProvisionedThroughputExceededException", "message": _THROTTLED}


def server_error() -> tuple[int, Json]:
    """Status and body of an answer that leaves open whether the call was carried out."""
    return 500, {"__type": f"{_SERVICE}InternalServerError", "message": _BROKEN}


def parts(request: Json) -> list[Any]:
    """The parts of a call of one of OPERATIONS_OF_PARTS: keys or writes, in their order."""
    return [each for table in request["RequestItems"].values() for each in _writes_or_keys(table)]


def split(operation: str, request: Json, refused: Collection[int]) -> tuple[Json, Callable[[Json], Json]]:
    """Throttle some parts of a call, but not all of them.

    Args:
        operation: one of OPERATIONS_OF_PARTS.
        request: as it was sent.
        refused: the indices in `parts`.

    Returns:
        the request for the rest; and the answer to all, given the answer to the rest.
    """
    taken: dict[str, Any] = {}
    left: dict[str, Any] = {}
    index = 0
    for table, requested in request["RequestItems"].items():
        for part in _writes_or_keys(requested):
            _add(left if index in refused else taken, table, requested, part)
            index += 1
    unprocessed = "UnprocessedKeys" if operation == "BatchGetItem" else "UnprocessedItems"
    return {**request, "RequestItems": taken}, lambda answer: {**answer, unprocessed: left}


def _writes_or_keys(table: Any) -> list[Any]:
    """Of one table: BatchGetItem has a map with keys, BatchWriteItem a list."""
    return list(table["Keys"] if isinstance(table, dict) else table)


def _add(tables: dict[str, Any], name: str, requested: Any, part: Any) -> None:
    if isinstance(requested, dict):
        tables.setdefault(name, {**requested, "Keys": []})["Keys"].append(part)
    else:
        tables.setdefault(name, []).append(part)
