"""The derivation of calls follows what programs of ours do with clients, tables and functions."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tests.support.points_to.program import Program
from tests.support.points_to.reading import Reader

STORE = """
class Store:
    def __init__(self, client, table):
        self._client = client
        self._table = table

    def read(self, key):
        request = {"TableName": self._table, "Key": key}
        return self._client.get_item(**request)

    def write(self, item):
        self._change(self._client.put_item, Item=item)

    def remove(self, key):
        self._change(self._client.delete_item, Key=key)

    def _change(self, call, **request):
        call(TableName=self._table, **request)

    def insert(self, rows):
        self._run([{"Statement": f'INSERT INTO "{self._table}" VALUE ' + "{}"} for _ in rows])

    def _run(self, statements):
        for start in range(0, len(statements), 25):
            self._client.batch_execute_statement(Statements=statements[start : start + 25])
"""


def calls(program: str) -> dict[str, tuple[set[str], set[str]]]:
    """Tables and keywords by method, of everything that `handler` can come to."""
    modules = {"store": ast.parse(STORE), "main": ast.parse(textwrap.dedent(program))}
    reader = Reader(Program(modules))
    reader.enter("main", "handler")
    found: dict[str, tuple[set[str], set[str]]] = {}
    for call in reader.calls.values():
        tables, keywords = found.setdefault(call.method, (set(), set()))
        tables |= call.tables | {text.split("⟨")[1].split("⟩")[0] for text in call.statements}
        keywords |= call.keywords
    return found


HEAD = """
from __future__ import annotations
import boto3
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from store import Store

def client():
    return boto3.client("dynamodb")
"""


def from_(body: str) -> dict[str, tuple[set[str], set[str]]]:
    return calls(HEAD + textwrap.dedent(body))


def test_a_call_is_found_with_its_table_and_its_keywords() -> None:
    assert from_("""
        def handler(event, settings):
            Store(client(), settings.tables.lanes).read(event)
    """) == {"get_item": ({"lanes"}, {"TableName", "Key"})}


def test_two_stores_of_one_class_are_told_apart() -> None:
    found = from_("""
        def handler(event, settings):
            one, other = Store(client(), settings.tables.lanes), Store(client(), settings.tables.control)
            one.read(event)
            other.write(event)
    """)

    assert {method: tables for method, (tables, _) in found.items()} == {"get_item": {"lanes"}, "put_item": {"control"}}


def test_operations_that_are_handed_on_are_told_apart() -> None:
    assert from_("""
        def handler(event, settings):
            store = Store(client(), settings.tables.lanes)
            store.write(event)
            store.remove(event)
    """) == {
        "put_item": ({"lanes"}, {"TableName", "Item"}),
        "delete_item": ({"lanes"}, {"TableName", "Key"}),
    }


def test_a_statement_is_followed_into_its_batch() -> None:
    assert from_("""
        def handler(event, settings):
            Store(client(), settings.tables.offset_map).insert(event)
    """) == {"batch_execute_statement": ({"offset_map"}, {"Statements"})}


def test_a_method_of_another_class_with_the_same_name_is_not_meant() -> None:
    assert (
        from_("""
        class File:
            def read(self, key):
                return key

        def handler(event, settings):
            unused = Store(client(), settings.tables.lanes)
            File().read(event)
    """)
        == {}
    )


@pytest.mark.parametrize(
    "way",
    [
        "run = store.read\n    run(event)",
        "run = lambda: store.read(event)\n    run()",
        "list(map(store.read, [event]))",
        "pool.submit(store.read, event)",
        "[each.read(event) for each in (store, store)]",
        "partial(store.read, event)()",
        "{'a': store}['a'].read(event)",
        "with opened(store) as each:\n        each.read(event)",
        "for each in several(store):\n        each.read(event)",
        "Holder(store).held.read(event)",
        "Holder(held=store).now",
        "Holder(store).later()",
        "Heir(store).later()",
        "kept(store).read(event)",
        "match store:\n        case found:\n            found.read(event)",
        "if (found := store):\n        found.read(event)",
        "by_key = {}\n    by_key[event] = store\n    by_key.get(event).read(event)",
        "rows = []\n    rows.append(store)\n    rows[0].read(event)",
        "a, (b, c) = 1, (store, 2)\n    b.read(event)",
        "parser.set_defaults(run=store.read)",
        "Holder.of(store).held.read(event)",
        "def inner():\n        return store\n    inner().read(event)",
        "try:\n        raise ValueError\n    except ValueError:\n        store.read(event)",
    ],
)
def test_a_store_is_followed_wherever_it_goes(way: str) -> None:
    found = calls(
        HEAD
        + f"""
from contextlib import contextmanager

@dataclass
class Holder:
    held: Store

    @classmethod
    def of(cls, store):
        return cls(held=store)

    @cached_property
    def now(self):
        return self.held.read("")

    def later(self):
        return self.now

class Heir(Holder):
    def later(self):
        return super().later()

@cache
def kept(store):
    return store

@contextmanager
def opened(store):
    yield store

def several(store):
    yield store
    yield from ()

def handler(event, settings, pool, parser):
    store = Store(client(), settings.tables.lanes)
    {way}
"""
    )

    assert {method: tables for method, (tables, _) in found.items()} == {"get_item": {"lanes"}}


def test_what_a_call_leaves_out_and_is_none_is_not_followed() -> None:
    assert set(
        from_("""
        def connect(role=None):
            if role:
                boto3.client("sts").assume_role(RoleArn=role)
            return boto3.client("sts").get_caller_identity() if not role else None

        def handler(event):
            connect()
    """)
    ) == {"get_caller_identity"}


def test_what_is_only_for_types_is_not_run() -> None:
    assert (
        from_("""
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            Store(client(), tables.lanes).read("")

        def handler(event):
            pass
    """)
        == {}
    )
