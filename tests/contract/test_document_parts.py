"""Documents that are larger than an item of DynamoDB: their parts under deaths, rivals and readers in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.adapters.dynamodb import state_store
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.clock import now_ms
from mirrorless.errors import Retriable
from mirrorless.settings import Tables
from tests.support.chains import FLOW

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


def died_before(call: int) -> Callable[[int], None]:
    def before(calls: int) -> None:
        if calls == call:
            raise DiedError

    return before


def once_before(call: int, act: Callable[[], object]) -> Callable[[int], None]:
    def before(calls: int) -> None:
        if calls == call:
            act()

    return before


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
