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
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final
from uuid import uuid4

from botocore.exceptions import ClientError

from mirrorless.adapters.dynamodb.client import translated
from mirrorless.adapters.dynamodb.direct import COLLISION
from mirrorless.adapters.dynamodb.fenced_puts import EPOCH, put_fenced
from mirrorless.adapters.dynamodb.retries import tries
from mirrorless.clock import now_ms
from mirrorless.errors import LeaseLost, Retriable
from mirrorless.lane import FlowName

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
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "flow = :flow AND begins_with(#key, :prefix)",
            "ExpressionAttributeNames": {"#key": "key"},
            "ExpressionAttributeValues": {":flow": {"S": str(flow)}, ":prefix": {"S": prefix}},
            "ConsistentRead": True,
        }
        while True:
            with translated(f"read {prefix} of {self._table}", str(flow)):
                answer = self._client.query(**request)
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

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
            try:
                answer: dict[str, Any] = call(TableName=self._table, **request)
            except ClientError as exc:
                if exc.response.get("Error", {}).get("Code") != COLLISION:
                    raise
                return None
        return answer


def _parts_of(head: Mapping[str, Any]) -> list[str]:
    """The keys of the parts that a head names, in order; none for a document in one item."""
    if "parts" not in head:
        return []
    key, version = head["key"]["S"], head["version"]["S"]
    return [f"{key}#{version}#{number:04}" for number in range(int(head["parts"]["N"]))]


def _key(flow: FlowName, key: str) -> dict[str, Any]:
    return {"flow": {"S": str(flow)}, "key": {"S": key}}
