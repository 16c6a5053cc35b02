"""One behaviour for documents and leases, in memory and in DynamoDB."""

from __future__ import annotations

import os
import random
from functools import partial

import msgspec
import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.errors import LeaseLost
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, GroupOffset
from mirrorless.groups.state import CheckpointStore
from mirrorless.lane import FlowName
from mirrorless.ports.stores import StateStore
from mirrorless.settings import Tables
from mirrorless.topics.acl_sync import DOCUMENT, AclDocument, stored
from mirrorless.topics.acls import Acl
from mirrorless.topics.topic_state import FlowStart, StoredTopics
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments

OTHER = FlowName("eu-west", "us-east")
LEASE = "lease/refresh_topics"
offset = partial(random.Random(7).randrange, 10**9, 10**10)  # noqa: S311 -- no secret
"""An offset that compresses no better than real ones."""
TOPICS = sorted(f"team-{number % 60:02}.service-{offset()}.events" for number in range(5_000))


@pytest.fixture(params=["memory", "dynamodb"])
def documents(request: pytest.FixtureRequest) -> StateStore:
    if request.param == "memory":
        return MemoryDocuments()
    dynamodb: DynamoDbLocal = request.getfixturevalue("dynamodb")
    tables: Tables = request.getfixturevalue("tables")
    return DynamoDbDocuments(dynamodb.client(), tables.control)


def test_a_document_comes_back_as_it_was_written(documents: StateStore) -> None:
    documents.write(FLOW, {"topic/orders": b'{"id": "x"}', "topic/empty": b""})
    assert documents.read(FLOW, "topic/") == {"topic/empty": b"", "topic/orders": b'{"id": "x"}'}


def test_what_is_written_again_is_replaced(documents: StateStore) -> None:
    documents.write(FLOW, {"task/configs": b"1"})
    documents.write(FLOW, {"task/configs": b"2"})
    assert documents.read(FLOW, "task/configs") == {"task/configs": b"2"}


def test_only_this_flow_and_this_prefix_are_read(documents: StateStore) -> None:
    documents.write(FLOW, {"task/configs": b"a", "topic/task": b"b"})
    documents.write(OTHER, {"task/configs": b"c"})
    assert documents.read(FLOW, "task/") == {"task/configs": b"a"}


def test_more_documents_than_one_batch_or_one_page_holds_are_all_there(documents: StateStore) -> None:
    many = {f"topic/{number:03}": os.urandom(30_000) for number in range(60)}
    documents.write(FLOW, many)
    assert documents.read(FLOW, "topic/") == many


def test_a_deleted_document_is_gone_and_deleting_it_twice_is_harmless(documents: StateStore) -> None:
    documents.write(FLOW, {"acls": b"x"})
    documents.delete(FLOW, "acls")
    documents.delete(FLOW, "acls")
    assert documents.read(FLOW, "acls") == {}


def test_a_document_of_megabytes_comes_back_as_it_was_written_and_is_one_document(documents: StateStore) -> None:
    large, last = os.urandom(3_000_000), os.urandom(500_000)
    written = {"forward/a": large, "forward/a#b": last, "forward/a/b": b"{}"}
    documents.write(FLOW, written)

    assert documents.read(FLOW, "forward/") == written
    assert list(documents.read(FLOW, "forward/")) == sorted(written)
    assert documents.read(OTHER, "forward/") == {}


@pytest.mark.parametrize("sizes", [(2_000_000, 10), (10, 2_000_000), (2_000_000, 1_000_000), (1_000_000, 2_000_000)])
def test_a_document_that_shrinks_or_grows_is_replaced(documents: StateStore, sizes: tuple[int, int]) -> None:
    for size in sizes:
        document = os.urandom(size)
        documents.write(FLOW, {"acls": document})
        assert documents.read(FLOW, "acls") == {"acls": document}


def test_a_deleted_document_of_megabytes_is_gone(documents: StateStore) -> None:
    documents.write(FLOW, {"acls": os.urandom(2_000_000), "acls/failover": b"x"})
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


def test_a_lease_has_one_holder(documents: StateStore) -> None:
    assert documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000)
    assert not documents.claim(FLOW, LEASE, holder="b", now=1_500, until=2_500)
    assert documents.claim(OTHER, LEASE, holder="b", now=1_500, until=2_500)


def test_a_holder_renews_its_lease(documents: StateStore) -> None:
    documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000)
    assert documents.claim(FLOW, LEASE, holder="a", now=1_900, until=3_000)
    assert not documents.claim(FLOW, LEASE, holder="b", now=2_500, until=3_500)


def test_a_lease_that_ran_out_is_free(documents: StateStore) -> None:
    documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000)
    assert documents.claim(FLOW, LEASE, holder="b", now=2_001, until=3_000)
    assert not documents.claim(FLOW, LEASE, holder="a", now=2_002, until=3_000)


def test_a_lease_that_ends_later_than_any_may_is_free_where_the_caller_says_what_may(documents: StateStore) -> None:
    documents.claim(FLOW, LEASE, holder="ahead", now=9_000, until=10_000)
    assert not documents.claim(FLOW, LEASE, holder="b", now=1_000, until=2_000)
    assert not documents.claim(FLOW, LEASE, holder="b", now=1_000, until=2_000, longest=9_000)
    assert documents.claim(FLOW, LEASE, holder="b", now=1_000, until=2_000, longest=8_999)
    assert not documents.claim(FLOW, LEASE, holder="ahead", now=1_000, until=10_000, longest=8_999)


def test_a_released_lease_is_free_but_only_its_holder_releases_it(documents: StateStore) -> None:
    documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000)
    documents.release(FLOW, LEASE, holder="b")
    assert not documents.claim(FLOW, LEASE, holder="b", now=1_500, until=2_500)
    documents.release(FLOW, LEASE, holder="a")
    assert documents.claim(FLOW, LEASE, holder="b", now=1_500, until=2_500)


def test_a_lease_is_no_document(documents: StateStore) -> None:
    documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000)
    assert documents.read(FLOW, "lease/") == {}


def test_the_epoch_of_a_lease_grows_with_every_claim_and_outlives_its_release(documents: StateStore) -> None:
    epochs = [documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000) for _ in range(2)]
    epochs.append(documents.claim(FLOW, LEASE, holder="b", now=2_001, until=3_000))
    documents.release(FLOW, LEASE, holder="b")
    epochs.append(documents.claim(FLOW, LEASE, holder="c", now=500, until=3_000))  # by a clock that is slow
    assert epochs == sorted({epoch for epoch in epochs if epoch is not None})
    assert len(epochs) == 4


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


@pytest.mark.parametrize("sizes", [(40, 1_300_000), (1_300_000, 40), (1_300_000, 1_200_000)])
def test_a_document_written_under_a_lease_shrinks_and_grows(documents: StateStore, sizes: tuple[int, int]) -> None:
    for document in map(os.urandom, sizes):
        documents.write(FLOW, {"acls": document}, epoch=7)
        assert documents.read(FLOW, "acls") == {"acls": document}


def test_more_documents_than_one_call_takes_are_written_under_a_lease(documents: StateStore) -> None:
    many = {f"topic/{number:03}": str(number).encode() for number in range(60)}
    documents.write(FLOW, dict.fromkeys(list(many)[::2], b"before"), epoch=6)
    documents.write(FLOW, many, epoch=7)
    assert documents.read(FLOW, "topic/") == many


def test_documents_of_no_lease_are_replaced_under_one_and_the_other_way_round(documents: StateStore) -> None:
    """A version before wrote them, or an operator does."""
    for epoch in (None, 7, None, 6):
        documents.write(FLOW, {"acls": str(epoch).encode()}, epoch=epoch)
        assert documents.read(FLOW, "acls") == {"acls": str(epoch).encode()}
    documents.delete(FLOW, "acls", epoch=6)
    documents.delete(FLOW, "acls", epoch=6)
    assert documents.read(FLOW, "acls") == {}
