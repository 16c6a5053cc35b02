"""One behaviour for documents and leases, in memory and in DynamoDB."""

from __future__ import annotations

import os

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.lane import FlowName
from mirrorless.ports.stores import StateStore
from mirrorless.settings import Tables
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments

OTHER = FlowName("eu-west", "us-east")
LEASE = "lease/refresh_topics"


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


def test_a_released_lease_is_free_but_only_its_holder_releases_it(documents: StateStore) -> None:
    documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000)
    documents.release(FLOW, LEASE, holder="b")
    assert not documents.claim(FLOW, LEASE, holder="b", now=1_500, until=2_500)
    documents.release(FLOW, LEASE, holder="a")
    assert documents.claim(FLOW, LEASE, holder="b", now=1_500, until=2_500)


def test_a_lease_is_no_document(documents: StateStore) -> None:
    documents.claim(FLOW, LEASE, holder="a", now=1_000, until=2_000)
    assert documents.read(FLOW, "lease/") == {}
