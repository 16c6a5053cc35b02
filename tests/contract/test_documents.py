"""Documents that are larger than an item of DynamoDB: their parts under deaths, rivals and readers in between."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb import state_store
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import FlowName
from mirrorless.clock import now_ms
from mirrorless.errors import LeaseLost, Retriable
from mirrorless.flow.settings import Tables
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, GroupOffset
from mirrorless.groups.ownership import LONG_AGO, members_stopped
from mirrorless.groups.state import CheckpointStore
from mirrorless.ports.stores import StateStore
from mirrorless.topics.acl_sync import DOCUMENT, AclDocument, stored
from mirrorless.topics.acls import Acl
from mirrorless.topics.topic_state import FlowStart, StoredTopics
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments

pytestmark = pytest.mark.integration

KEY = "forward/group#1"
PART = 1_000
OLD, NEW = os.urandom(5_500), os.urandom(30_500)
"""6 parts of that size; and 31, which take two batches."""


class DiedError(Exception):
    """The end of a writer."""


@dataclass
class ClientBetween:
    """A client of DynamoDB before whose calls something happens.

    Attributes:
        client: the real one.
        before: called with the number of calls so far.
        calls: so far.
    """

    client: Any
    before: Callable[[int], None]
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        def call(**request: Any) -> Any:
            self.calls += 1
            self.before(self.calls - 1)
            return getattr(self.client, name)(**request)

        return call


@dataclass
class DocumentTable:
    """A table of documents, and what is in it."""

    client: Any
    name: str

    def documents(self, before: Callable[[int], None] = lambda _calls: None) -> DynamoDbDocuments:
        """The store of one more process."""
        return DynamoDbDocuments(ClientBetween(self.client, before), self.name)

    def found(self) -> dict[str, bytes]:
        """What any process reads."""
        return self.documents().read(FLOW, "forward/")

    def items(self) -> list[dict[str, Any]]:
        """Every item."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.name)
        return [item for page in pages for item in page["Items"]]

    def parts(self) -> int:
        """How many items are parts."""
        return sum("part" in item for item in self.items())


@pytest.fixture
def table(dynamodb: DynamoDbLocal, tables: Tables) -> DocumentTable:
    return DocumentTable(dynamodb.client(), tables.control)


@pytest.fixture
def small(table: DocumentTable, monkeypatch: pytest.MonkeyPatch) -> DocumentTable:
    """One with small parts."""
    monkeypatch.setattr(state_store, "PART_BYTES", PART)
    return table


def once_before(call: int, act: Callable[[], object]) -> Callable[[int], None]:
    def before(calls: int) -> None:
        if calls == call:
            act()

    return before


def died_before(call: int) -> Callable[[int], None]:
    def die() -> None:
        raise DiedError

    return once_before(call, die)


def test_no_item_is_larger_than_dynamodb_takes(table: DocumentTable) -> None:
    table.documents().write(FLOW, {"x" * 990: os.urandom(3_000_000)})

    sizes = [sum(len(name) + len(next(iter(value.values()))) for name, value in item.items()) for item in table.items()]

    assert max(sizes) <= 400 * 1024


@pytest.mark.parametrize(("call", "whole"), [(0, OLD), (1, OLD), (2, OLD), (3, NEW), (4, NEW)])
def test_wherever_a_writer_dies_the_document_is_whole(small: DocumentTable, call: int, whole: bytes) -> None:
    """Its calls: two batches of parts, the head, the deletion of the old parts."""
    small.documents().write(FLOW, {KEY: OLD})
    writer = small.documents()
    writer.read(FLOW, KEY)
    client = ClientBetween(small.client, died_before(call))
    writer._client = client

    if call < 4:
        with pytest.raises(DiedError):
            writer.write(FLOW, {KEY: NEW})
    else:
        writer.write(FLOW, {KEY: NEW})

    assert client.calls == min(call + 1, 4)
    assert small.found() == {KEY: whole}


def test_the_next_write_of_a_writer_that_failed_leaves_no_other_parts(small: DocumentTable) -> None:
    writer = small.documents(died_before(2))
    with pytest.raises(DiedError):
        writer.write(FLOW, {KEY: NEW})

    writer.write(FLOW, {KEY: OLD})

    assert small.found() == {KEY: OLD}
    assert small.parts() == 6


@pytest.mark.parametrize("call", [0, 1, 2, 3])
def test_of_two_writers_at_once_the_last_head_stands_and_its_parts_are_there(small: DocumentTable, call: int) -> None:
    small.documents().write(FLOW, {KEY: OLD})
    one, rival = small.documents(), small.documents()
    one.read(FLOW, KEY)
    rival.read(FLOW, KEY)
    rivals = os.urandom(2_500)
    one._client = ClientBetween(small.client, once_before(call, lambda: rival.write(FLOW, {KEY: rivals})))

    one.write(FLOW, {KEY: NEW})

    assert small.found() == {KEY: rivals if call == 3 else NEW}
    for number, writer in enumerate((rival, one)):
        writer.read(FLOW, KEY)
        writer.write(FLOW, {KEY: bytes([number])})
        assert small.found() == {KEY: bytes([number])}


def test_parts_of_a_writer_that_died_are_deleted_once_it_cannot_be_alive(
    small: DocumentTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DiedError):
        small.documents(died_before(2)).write(FLOW, {KEY: NEW})
    writer = small.documents()

    for later, parts in ((0, 31 + 6), (state_store.ABANDONED_MS + 60_000, 6)):
        monkeypatch.setattr(state_store, "now_ms", lambda later=later: now_ms() + later)
        writer.read(FLOW, "forward/")
        writer.write(FLOW, {KEY: OLD})
        assert small.parts() == parts
        assert small.found() == {KEY: OLD}


def test_a_reader_between_whose_pages_a_document_is_replaced_reads_the_new_one(table: DocumentTable) -> None:
    old, new = os.urandom(2_000_000), os.urandom(2_000_000)
    writer = table.documents()
    writer.write(FLOW, {KEY: old})
    reader = table.documents(once_before(1, lambda: writer.write(FLOW, {KEY: new})))

    assert reader.read(FLOW, "forward/") == {KEY: new}


def test_a_document_that_lacks_a_part_is_an_error(small: DocumentTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "SETTLED_SECONDS", 0.1)
    small.documents().write(FLOW, {KEY: OLD})
    part = next(item for item in small.items() if "part" in item)
    small.client.delete_item(TableName=small.name, Key={"flow": part["flow"], "key": part["key"]})

    with pytest.raises(Retriable, match=f"the document {KEY} of {small.name} lacks parts"):
        small.documents().read(FLOW, "forward/")


@pytest.mark.parametrize("size", [10, 5_500])
def test_a_document_that_is_replaced_leaves_no_parts_of_before(small: DocumentTable, size: int) -> None:
    small.documents().write(FLOW, {KEY: NEW})
    writer = small.documents()
    writer.read(FLOW, "forward/")
    for _ in range(2):
        writer.write(FLOW, {KEY: os.urandom(size)})

    assert small.parts() == (6 if size > 10 else 0)


def test_deletion_leaves_nothing_even_by_who_has_not_read_the_document(small: DocumentTable) -> None:
    small.documents().write(FLOW, {KEY: NEW})

    small.documents().delete(FLOW, KEY)

    assert small.items() == []


OTHER = FlowName("eu-west", "us-east")
LEASE = "lease/refresh_topics"
offset = partial(random.Random(7).randrange, 10**9, 10**10)
"""An offset that compresses no better than real ones."""
TOPICS = sorted(f"team-{number % 60:02}.service-{offset()}.events" for number in range(5_000))


@pytest.fixture(params=["memory", "dynamodb"])
def documents(request: pytest.FixtureRequest) -> StateStore:
    if request.param == "memory":
        return MemoryDocuments()
    dynamodb: DynamoDbLocal = request.getfixturevalue("dynamodb")
    tables: Tables = request.getfixturevalue("tables")
    return DynamoDbDocuments(dynamodb.client(), tables.control)


@pytest.mark.parametrize("epoch", [None, 7], ids=["by anybody", "under a lease"])
@pytest.mark.parametrize(
    "written",
    [
        {"a/orders": b'{"id": "x"}', "a/empty": b""},
        {"a/a": os.urandom(3_000_000), "a/a#b": os.urandom(500_000), "a/a/b": b"{}"},
        {f"a/{number:03}": os.urandom(30_000) for number in range(60)},
    ],
    ids=["small ones", "of megabytes", "more than one call or page takes"],
)
def test_documents_of_a_flow_and_a_prefix_come_back_as_they_were_written(
    documents: StateStore, written: dict[str, bytes], epoch: int | None
) -> None:
    documents.write(OTHER, {"a/orders": b"of another flow"})
    documents.write(FLOW, {"b/a": b"of another prefix"} | dict.fromkeys(list(written)[::2], b"replaced"), epoch=epoch)
    documents.write(FLOW, written, epoch=epoch)

    assert documents.read(FLOW, "a/") == written
    assert list(documents.read(FLOW, "a/")) == sorted(written)


def test_a_key_has_1024_bytes_at_most(documents: StateStore) -> None:
    documents.write(FLOW, {"x" * 1_024: b"x"})

    for tried in (
        lambda: documents.write(FLOW, {"a": b"a", "x" * 1_025: b"x"}),
        lambda: documents.read(FLOW, "ü" * 513),
    ):
        with pytest.raises(Retriable, match=r"1024|1,024"):
            tried()
    assert documents.read(FLOW, "a") == {}


@pytest.mark.parametrize("name", ["x" * 900, "x" * 901, "ü" * 16_383, "x" * 32_767])
def test_a_group_of_any_name_has_documents_of_many_parts_and_claims(documents: StateStore, name: str) -> None:
    large, claimed = checkpoints("forward", name), members_stopped(name, "reverse")
    documents.write(FLOW, {claimed.key: msgspec.json.encode(claimed)})
    CheckpointStore(flow=FLOW, documents=documents, clock=lambda: 1).write({large.key: large})

    store = CheckpointStore(flow=FLOW, documents=documents, clock=lambda: 1)
    store.load()

    assert store.get("forward", name) == large
    assert store.expected("reverse", name).left_at == LONG_AGO
    assert documents.read(FLOW, "claim/") == {}


@pytest.mark.parametrize("epoch", [None, 7], ids=["by anybody", "under a lease"])
@pytest.mark.parametrize("sizes", [(2_000_000, 40), (40, 2_000_000), (2_000_000, 1_000_000), (1_000_000, 2_000_000)])
def test_a_document_that_shrinks_or_grows_is_replaced(
    documents: StateStore, sizes: tuple[int, int], epoch: int | None
) -> None:
    for document in map(os.urandom, sizes):
        documents.write(FLOW, {"acls": document}, epoch=epoch)
        assert documents.read(FLOW, "acls") == {"acls": document}


@pytest.mark.parametrize("size", [1, 2_000_000])
def test_a_deleted_document_is_gone_and_deleting_it_twice_is_harmless(documents: StateStore, size: int) -> None:
    documents.write(FLOW, {"acls": os.urandom(size), "acls/failover": b"x"})
    for _ in range(2):
        documents.delete(FLOW, "acls")
        assert documents.read(FLOW, "acls") == {"acls/failover": b"x"}


def test_the_topics_and_ends_of_100_000_partitions_are_stored_and_a_move_is_a_small_write(
    documents: StateStore,
) -> None:
    ends = {topic: [offset() for _ in range(100)] for topic in TOPICS[:1_000]}
    beginning = FlowStart(at=1, topics=tuple(TOPICS))
    documents.write(FLOW, StoredTopics(beginning=None, topics={}, ends={}).changed({}, ends))
    documents.write(FLOW, {"topics": msgspec.json.encode(beginning)})

    found = StoredTopics.of(documents.read(FLOW, "topic"))

    assert (found.beginning, found.ends) == (beginning, ends)
    assert sum(map(len, found.changed({}, ends | {TOPICS[500]: [0] * 100}).values())) < 5_000


def test_the_checkpoints_of_groups_on_25_000_partitions_are_stored_and_read_back(documents: StateStore) -> None:
    groups = {
        document.key: document
        for document in (checkpoints("forward", "one"), checkpoints("reverse", "one"), checkpoints("forward", "two"))
    }
    CheckpointStore(flow=FLOW, documents=documents, clock=lambda: 1).write(groups)

    store = CheckpointStore(flow=FLOW, documents=documents, clock=lambda: 1)
    store.load()

    assert {key: store.get(document.direction, document.group) for key, document in groups.items()} == groups


def checkpoints(direction: Direction, group: str) -> GroupCheckpoints:
    """Those of a group on 25,000 partitions."""
    numbers = {topic: {partition: offset() for partition in range(100)} for topic in TOPICS[:250]}
    return GroupCheckpoints(
        group=group,
        direction=direction,
        at=1,
        readiness="ready",
        offsets={
            topic: {partition: GroupOffset(number, offset(), "exact") for partition, number in partitions.items()}
            for topic, partitions in numbers.items()
        },
        carried=numbers,
        own={topic: {partition: (offset(), offset()) for partition in range(100)} for topic in numbers},
    )


def test_20_000_acl_bindings_are_stored_and_read_back(documents: StateStore) -> None:
    acls = tuple(
        Acl("TOPIC", "LITERAL", topic, f"User:CN=service-{offset()},OU={offset()}", "*", "ALLOW", operation)
        for topic in TOPICS
        for operation in ("READ", "WRITE", "DESCRIBE", "ALTER")
    )
    document = AclDocument(created=acls, staged=acls[:5_000], topics=tuple(TOPICS))
    documents.write(FLOW, {DOCUMENT: msgspec.json.encode(document)})

    assert stored(documents, FLOW) == (document, AclDocument())


Claim = tuple[str, int, int, bool]
CLAIMS: dict[str, list[Claim | str]] = {
    "it has one holder": [("a", 1_000, 2_000, True), ("b", 1_500, 2_500, False)],
    "its holder renews it": [("a", 1_000, 2_000, True), ("a", 1_900, 3_000, True), ("b", 2_500, 3_500, False)],
    "one that ran out is free": [("a", 1_000, 2_000, True), ("b", 2_001, 3_000, True), ("a", 2_002, 3_000, False)],
    "only its holder releases it": [("a", 1_000, 2_000, True), "b", ("b", 1_500, 2_500, False)],
    "one that was released is free": [("a", 1_000, 2_000, True), "a", ("b", 1_500, 2_500, True)],
    "also by a clock that is slow": [("b", 2_001, 3_000, True), "b", ("c", 500, 3_000, True)],
}
"""Claims by a holder, at a moment, until another, and whether each succeeds; and releases, by who tries."""


@pytest.mark.parametrize("events", CLAIMS.values(), ids=CLAIMS)
def test_a_lease_has_one_holder_and_an_epoch_that_grows_with_every_claim(
    documents: StateStore, events: list[Claim | str]
) -> None:
    epochs = []
    for event in events:
        if isinstance(event, str):
            documents.release(FLOW, LEASE, holder=event)
            continue
        holder, now, until, taken = event
        epoch = documents.claim(FLOW, LEASE, holder=holder, now=now, until=until)
        assert (epoch is not None) == taken
        epochs += [epoch] if epoch is not None else []

    assert epochs == sorted(set(epochs))
    assert documents.claim(OTHER, LEASE, holder="b", now=1_500, until=2_500), "of each flow"
    assert documents.read(FLOW, "lease/") == {}, "it is no document"


def test_a_lease_that_ends_later_than_any_may_is_free_where_the_caller_says_what_may(documents: StateStore) -> None:
    documents.claim(FLOW, LEASE, holder="ahead", now=9_000, until=10_000)
    assert not documents.claim(FLOW, LEASE, holder="b", now=1_000, until=2_000)
    assert not documents.claim(FLOW, LEASE, holder="b", now=1_000, until=2_000, longest=9_000)
    assert documents.claim(FLOW, LEASE, holder="b", now=1_000, until=2_000, longest=8_999)
    assert not documents.claim(FLOW, LEASE, holder="ahead", now=1_000, until=10_000, longest=8_999)


def test_a_run_whose_lease_was_taken_over_replaces_nothing_that_its_successor_wrote(documents: StateStore) -> None:
    old = documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000)
    documents.write(FLOW, {"topic/orders": b"a", "topic/payments": b"a"}, epoch=old)
    new = documents.claim(FLOW, LEASE, holder="b", now=2_001, until=3_000)
    documents.write(FLOW, {"topic/orders": b"b"}, epoch=new)

    with pytest.raises(LeaseLost, match=r"topic/orders .*a retry may help"):
        documents.write(FLOW, {"topic/orders": b"late"}, epoch=old)
    with pytest.raises(LeaseLost, match="topic/orders"):
        documents.delete(FLOW, "topic/orders", epoch=old)

    assert documents.read(FLOW, "topic/") == {"topic/orders": b"b", "topic/payments": b"a"}
    documents.write(FLOW, {"topic/orders": b"c", "topic/payments": b"c"}, epoch=new)
    documents.delete(FLOW, "topic/payments", epoch=new)
    assert documents.read(FLOW, "topic/") == {"topic/orders": b"c"}


def test_documents_of_no_lease_are_replaced_under_one_and_the_other_way_round(documents: StateStore) -> None:
    """A version before wrote them, or an operator does."""
    for epoch in (None, 7, None, 6):
        documents.write(FLOW, {"acls": str(epoch).encode()}, epoch=epoch)
        assert documents.read(FLOW, "acls") == {"acls": str(epoch).encode()}
    documents.delete(FLOW, "acls", epoch=6)
    documents.delete(FLOW, "acls", epoch=6)
    assert documents.read(FLOW, "acls") == {}
