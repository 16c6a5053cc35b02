"""Refusals in the words of DynamoDB, which DynamoDB Local never gives: whole calls, and parts inside a success.

Pure: requests and answers are decoded JSON. Shapes are those of the API reference and of botocore's model: the errors
that each operation names, `BatchStatementError`, `UnprocessedKeys`, `UnprocessedItems`. Status and type of an error:
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

Json = dict[str, Any]

OPERATIONS_OF_PARTS: Final = frozenset({"BatchExecuteStatement", "BatchGetItem", "BatchWriteItem"})
"""Operations of which single parts may fail."""

_SERVICE: Final = "com.amazonaws.dynamodb.v20120810#"
_THROTTLED: Final = (
    "The level of configured provisioned throughput for the table was exceeded. "
    "Consider increasing your provisioning level with the UpdateTable API."
)
_BUSY: Final = (
    "Throughput exceeds the current capacity of your table or index. "
    "DynamoDB is automatically scaling your table or index so please try again shortly."
)
_BROKEN: Final = "Internal server error"


def throttled_call(operation: str) -> tuple[int, Json]:
    """Status and body of an answer to a call that exceeds a table's throughput, before anything is carried out."""
    if operation == "BatchExecuteStatement":
        # The one batch whose model has no ProvisionedThroughputExceededException.
        return 400, {"__type": "com.amazon.coral.availability#ThrottlingException", "message": _BUSY}
    return 400, {"__type": f"{_SERVICE}ProvisionedThroughputExceededException", "message": _THROTTLED}


def server_error() -> tuple[int, Json]:
    """Status and body of an answer that leaves open whether the call was carried out."""
    return 500, {"__type": f"{_SERVICE}InternalServerError", "message": _BROKEN}


def parts(operation: str, request: Json) -> list[Any]:
    """The parts of a call that may fail one by one: statements, keys or writes, in their order.

    Args:
        operation: one of OPERATIONS_OF_PARTS.
        request: as it was sent.
    """
    if operation == "BatchExecuteStatement":
        return list(request["Statements"])
    return [each for table in request["RequestItems"].values() for each in _writes_or_keys(table)]


def split(operation: str, request: Json, refused: Collection[int]) -> tuple[Json | None, Callable[[Json], Json]]:
    """Throttle some parts of a call.

    Args:
        operation: one of OPERATIONS_OF_PARTS.
        request: as it was sent.
        refused: the indices in `parts`.

    Returns:
        the request for the rest, None where nothing is left of it; and the answer to all, given the answer to the rest.
    """
    if operation == "BatchExecuteStatement":
        return split_statements(request, refused, code="ThrottlingError")
    taken: dict[str, Any] = {}
    left: dict[str, Any] = {}
    index = 0
    for table, requested in request["RequestItems"].items():
        for part in _writes_or_keys(requested):
            _add(left if index in refused else taken, table, requested, part)
            index += 1
    unprocessed = "UnprocessedKeys" if operation == "BatchGetItem" else "UnprocessedItems"
    rest = {**request, "RequestItems": taken} if taken else None
    return rest, lambda answer: {**answer, unprocessed: left}


def split_statements(
    request: Json, refused: Collection[int], *, code: str, carried_out: Collection[int] = ()
) -> tuple[Json | None, Callable[[Json], Json]]:
    """Answer some statements of a BatchExecuteStatement with an error.

    Args:
        request: as it was sent.
        refused: their indices.
        code: of the error, a BatchStatementErrorCodeEnum.
        carried_out: those of `refused` that take effect all the same.

    Returns:
        as `split`.
    """
    statements = request["Statements"]
    sent = [index for index in range(len(statements)) if index not in refused or index in carried_out]

    def whole(answer: Json) -> Json:
        answers = dict(zip(sent, answer["Responses"], strict=True))
        answers |= {index: _statement_error(statements[index], code) for index in refused}
        return {**answer, "Responses": [answers[index] for index in range(len(statements))]}

    return ({**request, "Statements": [statements[index] for index in sent]} if sent else None), whole


def _statement_error(statement: Mapping[str, Any], code: str) -> Json:
    table = re.search(r'"([^"]+)"', statement["Statement"])
    named = {"TableName": table[1]} if table else {}
    return {"Error": {"Code": code, "Message": _BROKEN if code == "InternalServerError" else _BUSY}, **named}


def _writes_or_keys(table: Any) -> list[Any]:
    """Of one table: BatchGetItem has a map with keys, BatchWriteItem a list."""
    return list(table["Keys"] if isinstance(table, dict) else table)


def _add(tables: dict[str, Any], name: str, requested: Any, part: Any) -> None:
    if isinstance(requested, dict):
        tables.setdefault(name, {**requested, "Keys": []})["Keys"].append(part)
    else:
        tables.setdefault(name, []).append(part)
