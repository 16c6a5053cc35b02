"""Writes of items on condition that no later epoch has written them: 25 in a call, at the price of plain ones.

BatchWriteItem knows no condition, a transaction costs twice the write units, and single calls took twenty times the
CPU. PartiQL has no statement for "insert or replace". So an item is updated, and inserted where it does not exist; an
insert whose answer was lost finds its own item, which is then updated.
(https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/ql-reference.multiplestatements.batching.html)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorless.adapters.dynamodb.client import translated
from mirrorless.adapters.dynamodb.retries import tries
from mirrorless.errors import LeaseLost, Retriable

STATEMENTS: Final = 25
"""Statements that one BatchExecuteStatement takes."""

EPOCH: Final = "epoch"
"""The attribute with the epoch of the lease under which an item was written."""

KEYS: Final = ("flow", "key")

CONTENT: Final = ("document", "version", "parts")
"""The attributes of a document's item; what an item does not have is removed."""

_CONDITION: Final = f'("{EPOCH}" IS MISSING OR "{EPOCH}" <= ?)'

_UNMET: Final = frozenset(("ConditionalCheckFailed", "DuplicateItem"))

_TRANSIENT: Final = frozenset(
    (
        "InternalServerError",
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "ThrottlingError",
        "TransactionConflict",
    )
)
"""Errors of a statement that pass."""

_Item = Mapping[str, Mapping[str, Any]]


def put_fenced(client: Any, table: str, flow: str, items: Sequence[_Item], epoch: int) -> None:
    """Put items, each unless a later epoch has written it.

    Raises:
        LeaseLost: a later epoch has written one of them.
        Retriable: DynamoDB does not answer, or is throttled.
    """
    marked = [{**item, EPOCH: {"N": str(epoch)}} for item in items]

    def unmet(statements: Sequence[tuple[_Item, Mapping[str, Any]]]) -> list[_Item]:
        found: list[_Item] = []
        for start in range(0, len(statements), STATEMENTS):
            found += _execute(client, table, flow, statements[start : start + STATEMENTS])
        return found

    absent = unmet([(item, _update(table, item)) for item in marked])
    there = unmet([(item, _insert(table, item)) for item in absent])
    if later := unmet([(item, _update(table, item)) for item in there]):
        raise LeaseLost(
            f"a later run has written {later[0]['key']['S']} of {table}: the lease of this one was over",
            where=flow,
        )


def _update(table: str, item: _Item) -> dict[str, Any]:
    values = {name: value for name, value in item.items() if name not in KEYS}
    changes = [f'SET "{name}" = ?' for name in values]
    changes += [f'REMOVE "{name}"' for name in CONTENT if name not in values]
    where = " AND ".join(f'"{name}" = ?' for name in KEYS)
    return {
        "Statement": f'UPDATE "{table}" {" ".join(changes)} WHERE {where} AND {_CONDITION}',
        "Parameters": [*values.values(), *(item[name] for name in KEYS), item[EPOCH]],
    }


def _insert(table: str, item: _Item) -> dict[str, Any]:
    names = ", ".join(f"'{name}': ?" for name in item)
    return {"Statement": f'INSERT INTO "{table}" VALUE {{{names}}}', "Parameters": list(item.values())}


def _execute(client: Any, table: str, flow: str, statements: Sequence[tuple[_Item, Mapping[str, Any]]]) -> list[_Item]:
    """Run the statements, and again what fails for a reason that passes. Returns the items whose condition is unmet."""
    unmet: list[_Item] = []
    waiting = list(statements)
    for _ in tries(None):
        with translated(f"write to {table}", flow):
            answer = client.batch_execute_statement(Statements=[statement for _, statement in waiting])
        errors = [response.get("Error") for response in answer["Responses"]]
        failed = [(each, error) for each, error in zip(waiting, errors, strict=True) if error]
        unmet += [item for (item, _), error in failed if error["Code"] in _UNMET]
        waiting = [each for each, error in failed if error["Code"] in _TRANSIENT]
        for (item, _), error in failed:
            if error["Code"] not in _UNMET | _TRANSIENT:
                message = f"{error['Code']}: {error.get('Message', '')}"
                raise Retriable(f"DynamoDB refused to write {item['key']['S']} of {table}: {message}", where=flow)
        if not waiting:
            return unmet
    raise Retriable("DynamoDB keeps leaving items unwritten: it is throttled", where=flow)
