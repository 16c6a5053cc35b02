"""The offset map in DynamoDB: chains of lanes in journals; and the names of lanes in the other tables' keys.

A journal has one item for each entry, inserted where its number is free and updated when it is settled. An insert and
the update each cost one write unit for each KB of the entry. The insert that collides returns the entry that stands
there, which shows an answer that was lost. Items are read by query, so a page of entries is one request.
(https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/WorkingWithItems.html)
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from botocore.exceptions import ClientError

from mirrorless.adapters.dynamodb.client import batches, code_of, pages, translated, tries, unless_unmet
from mirrorless.adapters.dynamodb.direct import COLLISION
from mirrorless.chain.chains import JournalChains
from mirrorless.chain.entry import Entry, EntryState, Journal, pack_heads, pack_links, unpack_heads, unpack_links
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.clock import Deadline
from mirrorless.errors import LostRace
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.flow.tables import EXPIRY

OPEN_SECONDS: Final = 5.0
"""Of tries while a transaction is open, which holds up the target's readers and ends by itself after its timeout."""

KEYS: Final = 100
"""Keys that one BatchGetItem takes."""

PACKED_FROM: Final = 150
"""Bytes of links from which they are compressed: those of a single run have nothing that repeats. Six become a third
shorter in 13 us, which is stored for as long as the map is kept."""

_TRANSIENT = frozenset(
    (
        "InternalServerError",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
    )
)
"""Errors that pass; boto3 has tried some times already."""

_CANCELLED: Final = frozenset(("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"))
"""Reasons of a cancelled transaction that pass."""

Item = dict[str, dict[str, Any]]

_T = TypeVar("_T")


class DynamoDbJournals:
    """Implements `mirrorless.chain.store.Journals`."""

    def __init__(self, client: Any, table: str) -> None:
        """Args: client: a boto3 DynamoDB client."""
        self._client = client
        self._table = table

    def newest(self, after: Mapping[Journal, int], limit: int) -> Mapping[Journal, Sequence[Entry]]:
        """See `Journals.newest`."""
        found = in_parallel(lambda each: self._query(each, ">", after[each], forward=False, limit=limit), list(after))
        return dict(zip(after, found, strict=True))

    def at_or_below(self, journal: Journal, number: int) -> Entry | None:
        """See `Journals.at_or_below`."""
        found = self._query(journal, "<=", number, forward=False, limit=1)
        return found[0] if found else None

    def after(self, journal: Journal, number: int, *, limit: int) -> list[Entry]:
        """See `Journals.after`."""
        return self._query(journal, ">", number, forward=True, limit=limit)

    def read(self, journal: Journal, numbers: Iterable[int]) -> Mapping[int, Entry]:
        """See `Journals.read`."""
        wanted = sorted(numbers)
        found: dict[int, Entry] = {}
        for start in range(0, len(wanted), KEYS):
            keys: list[Item] = [_key(journal, number) for number in wanted[start : start + KEYS]]
            call = self._client.batch_get_item
            for answer in batches("read the offset map", str(journal), self._table, keys, call):
                entries = [_entry(journal, item) for item in answer["Responses"].get(self._table, [])]
                found |= {entry.number: entry for entry in entries}
        return found

    def insert(self, entry: Entry, deadline: Deadline | None = None) -> Entry | None:
        """See `Journals.insert`."""
        item = self._item(entry)

        def put() -> Entry | None:
            try:
                self._client.put_item(
                    TableName=self._table,
                    Item=item,
                    ConditionExpression="attribute_not_exists(slice)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except ClientError as exc:
                if code_of(exc) != COLLISION:
                    raise
                standing: Item = exc.response["Item"]
                if standing["attempt"] != item["attempt"]:
                    return _entry(entry.journal, standing)
                if standing["state"] != item["state"]:
                    raise LostRace(
                        "another settled this attempt before its insert was answered", where=str(entry.journal)
                    ) from None
            return None

        return self._write(put, "prepare runs", entry.journal, tries(deadline, seconds=OPEN_SECONDS))

    def insert_all(self, entries: Sequence[Entry]) -> Entry | None:
        """See `Journals.insert_all`. A transaction costs twice the write units of its entries."""
        journal, items = entries[0].journal, [self._item(entry) for entry in entries]
        puts = [
            {
                "Put": {
                    "TableName": self._table,
                    "Item": item,
                    "ConditionExpression": "attribute_not_exists(slice)",
                    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                }
            }
            for item in items
        ]

        def put() -> Entry | None:
            try:
                self._client.transact_write_items(TransactItems=puts)
            except ClientError as exc:
                standing = [reason.get("Item") for reason in _reasons(exc)]
                taken = [(item, own) for item, own in zip(standing, items, strict=False) if item is not None]
                if not taken:
                    raise
                rivals = [item for item, own in taken if item["attempt"] != own["attempt"]]
                if not rivals and len(taken) < len(items):
                    raise LostRace("a part of these entries stands there", where=str(journal)) from None
                # Without a rival all of them are ours: the answer to an earlier try was lost.
                return _entry(journal, rivals[0]) if rivals else None
            return None

        return self._write(put, "add runs", journal, tries(None))

    def settle(self, entry: Entry, state: EntryState, expires_at: int, deadline: Deadline | None = None) -> bool:
        """See `Journals.settle`."""

        def update() -> bool:
            values: Item = {
                ":state": {"S": state},
                ":open": {"S": "prepared"},
                ":attempt": {"S": entry.attempt},
                ":expiry": {"N": str(expires_at)},
            }
            return self._update(
                entry.journal,
                entry.number,
                values,
                UpdateExpression=f"SET #state = :state, {EXPIRY} = :expiry",
                ConditionExpression="attempt = :attempt AND #state IN (:open, :state)",
                ExpressionAttributeNames={"#state": "state"},
            )

        what = "confirm runs" if state == "committed" else "withdraw runs"
        return self._write(update, what, entry.journal, tries(deadline))

    def renew(self, journal: Journal, numbers: Iterable[int], expires_at: int) -> None:
        """See `Journals.renew`."""
        for number in numbers:
            self._write(partial(self._prolong, journal, number, expires_at), "renew runs", journal, tries(None))

    def _prolong(self, journal: Journal, number: int, expires_at: int) -> bool:
        return self._update(
            journal,
            number,
            {":expiry": {"N": str(expires_at)}},
            UpdateExpression=f"SET {EXPIRY} = :expiry",
            ConditionExpression=f"{EXPIRY} < :expiry",
        )

    def _query(self, journal: Journal, relation: str, number: int, *, forward: bool, limit: int) -> list[Entry]:
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": f"slice = :slice AND #number {relation} :number",
            "ExpressionAttributeNames": {"#number": "number"},
            "ExpressionAttributeValues": {":slice": {"S": str(journal)}, ":number": {"N": str(number)}},
            "ConsistentRead": True,
            "ScanIndexForward": forward,
            "Limit": limit,
        }
        items: list[Item] = []
        while True:
            with translated("read the offset map", str(journal)):
                answer = self._client.query(**request)
            items += answer["Items"]
            # A page of DynamoDB's ends at 1 MB.
            if len(items) >= limit or "LastEvaluatedKey" not in answer:
                return [_entry(journal, item) for item in items]
            request |= {"ExclusiveStartKey": answer["LastEvaluatedKey"], "Limit": limit - len(items)}

    def _update(self, journal: Journal, number: int, values: Item, **request: Any) -> bool:
        """Update an entry where a condition holds; whether it did."""
        request |= {"TableName": self._table, "Key": _key(journal, number), "ExpressionAttributeValues": values}
        return unless_unmet(self._client.update_item, **request) is not None

    def _write(self, call: Callable[[], _T], what: str, journal: Journal, attempts: Iterator[None]) -> _T:
        """Make a call, once per attempt while it fails for a reason that passes."""
        with translated(what, str(journal)):
            failure: ClientError | None = None
            for _ in attempts:
                try:
                    return call()
                except ClientError as exc:
                    if code_of(exc) not in _TRANSIENT and not any(each["Code"] in _CANCELLED for each in _reasons(exc)):
                        raise
                    failure = exc
            raise failure or ValueError("no attempt at all")

    def _item(self, entry: Entry) -> Item:
        links, heads = pack_links(entry), pack_heads(entry)
        item: Item = {
            **_key(entry.journal, entry.number),
            "state": {"S": entry.state},
            "writer": {"S": entry.writer},
            "attempt": {"S": entry.attempt},
            "at": {"N": str(entry.settled_at)},
        }
        packed = zlib.compress(links) if len(links) >= PACKED_FROM else links
        item |= {"packed": {"B": packed}} if len(packed) < len(links) else {"links": {"B": links}}
        if entry.heads:
            item["heads"] = {"B": heads}
        if entry.request:
            item["request"] = {"S": entry.request}
        if entry.examined:
            item["examined"] = {"BOOL": True}
        if entry.throttled_ms:
            item["throttled"] = {"N": str(entry.throttled_ms)}
        if entry.expires_at is not None:
            item[EXPIRY] = {"N": str(entry.expires_at)}
        return item


def _key(journal: Journal, number: int) -> Item:
    return {"slice": {"S": str(journal)}, "number": {"N": str(number)}}


def _entry(journal: Journal, item: Item) -> Entry:
    state: EntryState = item["state"]["S"]
    number = int(item["number"]["N"])
    entry = Entry(
        journal=journal,
        number=number,
        state=state,
        writer=item["writer"]["S"],
        attempt=item["attempt"]["S"],
        request=item["request"]["S"] if "request" in item else "",
        settled_at=int(item["at"]["N"]),
        examined="examined" in item,
        throttled_ms=int(item["throttled"]["N"]) if "throttled" in item else 0,
        links={},
        previous={},
        heads=unpack_heads(item["heads"]["B"], number) if "heads" in item else {},
        expires_at=int(item[EXPIRY]["N"]) if EXPIRY in item else None,
    )
    links = item["links"]["B"] if "links" in item else zlib.decompress(item["packed"]["B"])
    unpacked = unpack_links(links, entry)
    return replace(entry, links=unpacked.links, previous=unpacked.previous)


def _reasons(exc: ClientError) -> Sequence[Mapping[str, Any]]:
    """Of a transaction that was cancelled, one for each item: with the one that stands in its place, if one does."""
    response: Any = exc.response
    return response.get("CancellationReasons", ()) if code_of(exc) == "TransactionCanceledException" else ()


class DynamoDbChains(JournalChains):
    """The chains of all lanes of the offset map."""

    def __init__(
        self, client: Any, table: str, *, retention_days: int = 30, clock: Callable[[], float] = time.time
    ) -> None:
        """Args: client: a boto3 DynamoDB client. retention_days: after which an entry may expire. clock: seconds."""
        super().__init__(
            journals=DynamoDbJournals(client, table),
            retention_seconds=retention_days * 86_400,
            clock=clock,
            each=in_parallel,
        )


def parse_lane(text: str) -> Lane:
    """The inverse of `str(lane)`."""
    flow, _, topic_partition = text.partition(" ")
    topic, _, partition = topic_partition.rpartition("-")
    return Lane(FlowName.parse(flow), topic, int(partition))


def lanes_in(client: Any, table: str, flow: FlowName) -> list[Lane]:
    """Every lane of a flow that has an item in this table, in order: a scan of its keys, never of the offset map.

    Raises:
        Retriable: DynamoDB does not answer.
    """
    page = partial(client.scan, TableName=table, ProjectionExpression="lane", ConsistentRead=True)
    names = {item["lane"]["S"] for item in pages(f"list the lanes of {table}", str(flow), page)}
    return sorted(lane for lane in map(parse_lane, names) if lane.flow == flow)
