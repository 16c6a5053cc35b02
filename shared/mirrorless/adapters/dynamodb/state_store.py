"""Documents and leases in DynamoDB: one item each, and a document that is larger than an item in several.

    document   key                             document: compressed JSON; epoch: of the lease it was written under
    its head   key                             version, parts: how many; in place of `document` where that is too large
    a part     <key>#<version>#<number>        part: a piece of the compressed JSON
    lease      key                             holder, until, epoch: grows with every claim

An epoch is a fencing token: a run whose lease is over has an older one than its successor, and replaces nothing that
the successor has written. A released lease keeps its item, and so its epoch. Where the item was lost, epochs begin at
the time, in ms: they grow by one a claim, so it is ahead of all.

Parts are written before the head that names their version, and the parts of the version before are deleted after it. So
a reader finds the old document or the new one, whole, wherever a writer dies. A key begins with the key of its
document, so the query that lists documents reads the parts too.

Items are written on condition that no later epoch has written them: 25 in a call, at the price of plain ones.
BatchWriteItem knows no condition, a transaction costs twice the write units, and single calls took twenty times the
CPU. PartiQL has no statement for "insert or replace". So an item is updated, and inserted where it does not exist; an
insert whose answer was lost finds its own item, which is then updated.
(https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/ql-reference.multiplestatements.batching.html)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final
from uuid import uuid4

from mirrorless.adapters.dynamodb.client import pages, translated, tries, unless_unmet
from mirrorless.chain.lane import FlowName
from mirrorless.clock import now_ms
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


ITEMS: Final = 25
"""Items that one BatchWriteItem takes; parts are 10 of its 16 MB."""

PART_BYTES: Final = 384 * 1024
"""Compressed bytes in one item, whose limit of 400 KB holds its key and the names of its attributes too."""

ABANDONED_MS: Final = 900_000
"""The age at which parts without a head have lost their writer: no function runs longer."""

SETTLED_SECONDS: Final = 5.0
"""Of reads of a document whose parts are being replaced."""


class DynamoDbDocuments:
    """Implements `mirrorless.ports.stores.StateStore` on one table."""

    def __init__(self, client: Any, table: str) -> None:
        self._client = client
        self._table = table
        self._parts: dict[tuple[FlowName, str], set[str]] = {}
        """Keys of parts by document, which its next write replaces: what was read or written here last."""

    def read(self, flow: FlowName, prefix: str) -> dict[str, bytes]:
        """See `StateStore.read`."""
        for _ in tries(None, seconds=SETTLED_SECONDS):
            items = {item["key"]["S"]: item for item in self._query(flow, prefix)}
            heads = {key: _parts_of(item) for key, item in items.items() if "document" in item or "parts" in item}
            torn = [key for key, parts in heads.items() if not items.keys() >= set(parts)]
            if not torn:
                break
        else:
            raise Retriable(
                f"the document {torn[0]} of {self._table} lacks parts",
                where=str(flow),
                hint="if this stays, restore the table to an earlier time",
            )
        self._note(flow, prefix, heads, items)
        return {
            key: zlib.decompress(
                b"".join(items[part]["part"]["B"] for part in parts) if parts else items[key]["document"]["B"]
            )
            for key, parts in heads.items()
        }

    def _query(self, flow: FlowName, prefix: str) -> Iterator[dict[str, Any]]:
        page = partial(
            self._client.query,
            TableName=self._table,
            KeyConditionExpression="flow = :flow AND begins_with(#key, :prefix)",
            ExpressionAttributeNames={"#key": "key"},
            ExpressionAttributeValues={":flow": {"S": str(flow)}, ":prefix": {"S": prefix}},
            ConsistentRead=True,
        )
        return pages(f"read {prefix} of {self._table}", str(flow), page)

    def _note(
        self, flow: FlowName, prefix: str, heads: Mapping[str, list[str]], items: Mapping[str, dict[str, Any]]
    ) -> None:
        """Note the parts that next writes replace: those of heads, and those that were abandoned.

        Younger parts without a head may be those of another writer, whose head comes next.
        """
        for (owner, document), known in self._parts.items():
            if owner == flow and document.startswith(prefix):
                known.intersection_update(items)
        used = {part for parts in heads.values() for part in parts}
        for part in (key for key, item in items.items() if "part" in item):
            document, version, _ = part.rsplit("#", 2)
            if part in used or int(version.partition("-")[0]) < now_ms() - ABANDONED_MS:
                self._parts.setdefault((flow, document), set()).add(part)

    def write(self, flow: FlowName, documents: Mapping[str, bytes], *, epoch: int | None = None) -> None:
        """See `StateStore.write`."""
        heads: list[dict[str, Any]] = []
        parts: dict[str, dict[str, Any]] = {}
        for key, document in documents.items():
            content = zlib.compress(document)
            head = _key(flow, key) | {"document": {"B": content}}
            if len(content) > PART_BYTES:
                pieces = [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]
                version = f"{now_ms()}-{uuid4().hex[:8]}"
                head = _key(flow, key) | {"version": {"S": version}, "parts": {"N": str(len(pieces))}}
                own = dict(zip(_parts_of(head), pieces, strict=True))
                parts |= {each: _key(flow, each) | {"part": {"B": piece}} for each, piece in own.items()}
                self._parts.setdefault((flow, key), set()).update(own)
            heads.append(head)
        self._batch(flow, ({"PutRequest": {"Item": item}} for item in parts.values()))
        if epoch is None:
            self._batch(flow, ({"PutRequest": {"Item": item}} for item in heads))
        else:
            put_fenced(self._client, self._table, str(flow), heads, epoch)
        for key in documents:
            self._delete_parts(flow, key, but=parts.keys())

    def delete(self, flow: FlowName, key: str, *, epoch: int | None = None) -> None:
        """See `StateStore.delete`."""
        condition: dict[str, Any] = {}
        if epoch is not None:
            condition["ConditionExpression"] = f"attribute_not_exists({EPOCH}) OR {EPOCH} <= :epoch"
            condition["ExpressionAttributeValues"] = {":epoch": {"N": str(epoch)}}
        answer = self._conditionally(
            f"delete {key}", flow, self._client.delete_item, Key=_key(flow, key), ReturnValues="ALL_OLD", **condition
        )
        if answer is None:
            raise LeaseLost(f"a later run has written {key} of {self._table}", where=str(flow))
        self._parts.setdefault((flow, key), set()).update(_parts_of(answer.get("Attributes", {})))
        self._delete_parts(flow, key, but=frozenset())

    def _delete_parts(self, flow: FlowName, key: str, *, but: AbstractSet[str]) -> None:
        """Delete the known parts of a document, but for those that its head names."""
        if known := self._parts.get((flow, key)):
            self._batch(flow, ({"DeleteRequest": {"Key": _key(flow, part)}} for part in known - but))
            known &= but

    def _batch(self, flow: FlowName, requests: Iterable[dict[str, Any]]) -> None:
        """Put or delete items, each key once."""
        todo = list(requests)
        for start in range(0, len(todo), ITEMS):
            waiting = todo[start : start + ITEMS]
            for _ in tries(None):
                with translated(f"write to {self._table}", str(flow)):
                    answer = self._client.batch_write_item(RequestItems={self._table: waiting})
                waiting = answer.get("UnprocessedItems", {}).get(self._table, [])
                if not waiting:
                    break
            else:
                raise Retriable("DynamoDB keeps leaving items unwritten: it is throttled", where=str(flow))

    def claim(
        self, flow: FlowName, key: str, *, holder: str, now: int, until: int, longest: int | None = None
    ) -> int | None:
        """See `StateStore.claim`."""
        free, values = "attribute_not_exists(holder) OR holder = :holder OR #until < :now", {}
        if longest is not None:
            free, values = f"{free} OR #until > :latest", {":latest": {"N": str(now + longest)}}
        answer = self._conditionally(
            f"claim {key}",
            flow,
            self._client.update_item,
            Key=_key(flow, key),
            UpdateExpression=f"SET holder = :holder, #until = :until, {EPOCH} = if_not_exists({EPOCH}, :now) + :one",
            ConditionExpression=free,
            ExpressionAttributeNames={"#until": "until"},
            ExpressionAttributeValues={
                ":holder": {"S": holder},
                ":until": {"N": str(until)},
                ":now": {"N": str(now)},
                ":one": {"N": "1"},
                **values,
            },
            ReturnValues="UPDATED_NEW",
        )
        return None if answer is None else int(answer["Attributes"][EPOCH]["N"])

    def release(self, flow: FlowName, key: str, *, holder: str) -> None:
        """See `StateStore.release`."""
        self._conditionally(
            f"release {key}",
            flow,
            self._client.update_item,
            Key=_key(flow, key),
            UpdateExpression="REMOVE holder",
            ConditionExpression="holder = :holder",
            ExpressionAttributeValues={":holder": {"S": holder}},
        )

    def _conditionally(self, what: str, flow: FlowName, call: Any, **request: Any) -> dict[str, Any] | None:
        """The answer; None where the call's condition does not hold."""
        with translated(f"{what} of {self._table}", str(flow)):
            return unless_unmet(call, TableName=self._table, **request)


def _parts_of(head: Mapping[str, Any]) -> list[str]:
    """The keys of the parts that a head names, in order; none for a document in one item."""
    if "parts" not in head:
        return []
    key, version = head["key"]["S"], head["version"]["S"]
    return [f"{key}#{version}#{number:04}" for number in range(int(head["parts"]["N"]))]


def _key(flow: FlowName, key: str) -> dict[str, Any]:
    return {"flow": {"S": str(flow)}, "key": {"S": key}}
