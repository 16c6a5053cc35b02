"""Documents by chance, against an oracle that knows their texts; and odd ones, with what is documented for them."""

from __future__ import annotations

import hmac
import json
import re
import traceback
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
import pytest

from mirrorless.errors import ConfigurationError
from mirrorless.records.record import Record
from mirrorless.transforms import json_fields
from mirrorless.transforms.ciphers import opened_json
from mirrorless.transforms.rules import KeyRing, Rule, RuleInForce
from mirrorless.transforms.transform import TopicTransform, TransformFailed, make_ready

MATERIAL = b"m" * 32
Route = tuple[str | int, ...]
"""Names, and indexes; in a path "*" and -1 are all of either."""


@dataclass
class Node:
    """A value of a document, and its text."""

    text: str
    members: list[tuple[str, Node]] | None = None
    """Names as they are written."""
    elements: list[Node] | None = None


class Misfit(Exception):
    """The oracle's word for a rule that cannot be applied."""


ATOMS = [
    *("null", "true", "1e400", "-0.0", "123456789012345678901234567890", '""', '"text"', '"é"', r'"\ud83d\ude00\/"'),
    *(r'"a\u0000b"', '"*"', r'"\""', "[ ]", "{ }", "[" * 200 + "]" * 200, '{"a":' * 200 + "0" + "}" * 200),
]
NAMES = ['"a"', '"b"', '"b"', r'"\u0061"', '"0"', '"é"', r'"\u00e9"', '"x.y"', '""', r'"\"\\"']
PLANTED = "hunter2"
STEPS: list[str | int] = ["a", "a", "b", "b", "*", "*", "0", "é", "x.y", '"\\', 0, 1, -1, -1]
ACTIONS: list[Any] = [
    *("drop", "pass", {"hmac": "pii"}, {"encrypt": "pii"}, {"set": {"é": [1]}}, {"set": None}),
    *({"keep.last": 2}, {"keep.first": 1, "keep.last": 1}, {"truncate": 1}),
]


def document(chance: Random, depth: int) -> Node:
    blank = chance.choice(["", "", " ", "\r\n\t"])
    if depth == 0 or chance.random() < 0.2:
        return Node(chance.choice(ATOMS))
    below = [document(chance, depth - 1) for _ in range(chance.randrange(5))]
    if chance.random() < 0.4:
        return Node(f"[{blank}{f'{blank},'.join(node.text for node in below)}{blank}]", elements=below)
    members = [(chance.choice(NAMES), node) for node in below]
    pairs = f",{blank}".join(f"{name}{blank}:{blank}{node.text}" for name, node in members)
    return Node(f"{{{blank}{pairs}{blank}}}", members=members)


def written(route: Route) -> str:
    """A route as a path of a rule."""
    steps = [
        f"[{'*' if step == -1 else step}]"
        if isinstance(step, int)
        else f".{step if step in {'a', 'b', '*', '0'} else json.dumps(step)}"
        for step in route
    ]
    return "".join(steps).removeprefix(".")


class Oracle:
    """A rule's paths, each asked at each place: slow, and without a tree."""

    def __init__(self, actions: Mapping[Route, Any]) -> None:
        self.actions = actions
        self.sealed = 0

    def copy(self, node: Node, at: Route = ()) -> str | None:
        """The text of what stands at a place; None where it is dropped."""
        there = [path for path in self.actions if self._matches(path, at)]
        ends = min((path for path in there if len(path) <= len(at)), key=self._rank(at), default=None)
        leads = min((path for path in there if len(path) > len(at)), key=self._rank(at), default=None)
        if ends is not None and (leads is None or self._rank(at)(ends) < self._rank(at)(leads)):
            return self._act(self.actions[ends], node.text)
        if leads is None or node.text == "null":
            return node.text
        ways: list[tuple[str, str | int, Node]] = []
        if isinstance(leads[len(at)], int):
            if not node.text.startswith("["):
                raise Misfit
            ways = [("", index, each) for index, each in enumerate(parts(node).elements or [])]
        else:
            if not node.text.startswith("{"):
                raise Misfit
            last = {json.loads(name): each for name, each in parts(node).members or []}
            ways = [(json.dumps(name, ensure_ascii=False) + ":", name, each) for name, each in last.items()]
        copies = [(prefix, self.copy(each, (*at, step))) for prefix, step, each in ways]
        inside = ",".join(prefix + copy for prefix, copy in copies if copy is not None)
        return f"[{inside}]" if node.text.startswith("[") else f"{{{inside}}}"

    @staticmethod
    def _matches(path: Route, at: Route) -> bool:
        return all(
            type(step) is type(there) and step in {there, "*" if isinstance(there, str) else -1}
            for step, there in zip(path, at, strict=False)
        )

    @staticmethod
    def _rank(at: Route) -> Any:
        """At the first step where two differ, a name or an index goes before all."""
        return lambda path: [step in {"*", -1} for step in path[: len(at)]]

    def _act(self, action: Any, text: str) -> str | None:
        if action in ("drop", "pass") or text == "null":
            return None if action == "drop" else text
        ((kind, how), *more) = action.items()
        is_text, is_number = text.startswith('"'), text[0] in "-0123456789"
        content = json.loads(text) if is_text else text
        if kind == "set":
            return json.dumps(how, ensure_ascii=False, separators=(",", ":"))
        if kind == "hmac":
            mac = hmac.digest(hmac.digest(MATERIAL, b"mirrorless hmac", "sha256"), content.encode(), "sha256")
            return f'"{urlsafe_b64encode(mac).decode().rstrip("=")}"'
        if kind == "encrypt":
            self.sealed += 1
            return text
        if not is_text and not (is_number and kind.startswith("keep")):
            raise Misfit
        if kind == "truncate":
            return json.dumps(content[:how], ensure_ascii=False)
        first, last = (how, more[0][1]) if more else (0, how)
        stays = [index < first or index >= len(content) - last for index in range(len(content))]
        hidden = "".join(each if stay and not all(stays) else "*" for each, stay in zip(content, stays, strict=True))
        return json.dumps(hidden, ensure_ascii=False)


def parts(node: Node) -> Node:
    """The same with what is in it, for atoms too."""
    if node.members is not None or node.elements is not None or node.text in {"[ ]", "{ }"}:
        return node
    if node.text.startswith("["):
        return Node(node.text, elements=[Node(node.text[1:-1])] if len(node.text) > 2 else [])
    return Node(node.text, members=[('"a"', Node(node.text[5:-1]))])


def ready(fields: Mapping[str, Any]) -> TopicTransform:
    rule = msgspec.convert({"topics": ["t"], "fields": fields}, Rule)
    return make_ready(RuleInForce(rule, dict.fromkeys(rule.keys, 1)), {"pii": KeyRing(1, {1: MATERIAL})}, "t")


def rules(chance: Random) -> Iterator[tuple[dict[Route, Any], TopicTransform]]:
    """Rules by chance whose paths do not contradict each other."""
    while True:
        routes = [tuple(chance.choices(STEPS, k=chance.randrange(1, 4))) for _ in range(chance.randrange(1, 5))]
        actions = {route: chance.choice(ACTIONS) for route in routes}
        try:
            yield actions, ready({written(route): action for route, action in actions.items()})
        except ConfigurationError:
            continue


def copy_of(transform: TopicTransform, value: bytes) -> bytes:
    copy = transform.apply(Record(7, 0, [], None, value), 3)
    assert copy is not None
    assert copy.value is not None
    return copy.value


def test_documents_by_chance_become_what_an_oracle_says() -> None:
    chance = Random(20260401)
    outcomes = {"changed": 0, "as before": 0, "misfit": 0, "sealed": 0}
    for _, (actions, transform) in zip(range(1_000), rules(chance), strict=False):
        node = document(chance, 4)
        oracle = Oracle(actions)
        try:
            expected = oracle.copy(node)
        except Misfit:
            outcomes["misfit"] += 1
            with pytest.raises(TransformFailed):
                copy_of(transform, node.text.encode())
            continue

        copy = copy_of(transform, node.text.encode())

        assert opened_json(copy, {1: MATERIAL}).decode() == expected, (actions, node.text)
        assert len(re.findall(rb'"mle1:', copy)) == oracle.sealed, (actions, node.text)
        outcomes["sealed"] += oracle.sealed
        outcomes["as before" if expected == node.text else "changed"] += 1
    assert min(outcomes.values()) > 20, outcomes


@pytest.mark.parametrize(
    ("value", "copy"),
    [
        pytest.param(
            b'{"a":1,"x":%b}' % (b"[" * 200 + b"]" * 200), b'{"x":%b}' % (b"[" * 200 + b"]" * 200), id="200 deep"
        ),
        *(
            pytest.param(document, document, id=name)
            for name, document in {
                "500 deep": b'{"x":%b1%b}' % (b"[" * 499, b"]" * 499),
                "wide": b'{"x":[%b1]}' % (b"{},[]," * 600),
                "brackets in a string": b'{"x":"%b"}' % (b"[{" * 600),
            }.items()
        ),
        pytest.param(b'{"a":%b,"x":1}' % (b'{"a":' * 200 + b"1" + b"}" * 200), b'{"x":1}', id="200 deep, dropped"),
        pytest.param(b'{"a":1,"x":"%b"}' % (b"x" * 4_000_000), b'{"x":"%b"}' % (b"x" * 4_000_000), id="4 MB"),
        pytest.param(b'{"k":"%b1"}' % (b"x" * 3_999_999), b'{"k":"%b1"}' % (b"*" * 3_999_999), id="4 MB masked"),
        pytest.param(b'{"x":"\xff\xed\xa0\x80"}', b'{"x":"\xff\xed\xa0\x80"}', id="no UTF-8, untouched"),
        pytest.param(b'{"a":"\xff","b":1}', b'{"b":1}', id="no UTF-8, dropped"),
        pytest.param(b'{"k":"\xffhunter2"}', "value.k has a string that is no Unicode text", id="no UTF-8, masked"),
        pytest.param(b'{"h":"\xffhunter2"}', "value.h has a string that is no Unicode text", id="no UTF-8, hmac"),
        pytest.param(
            b'{"\xff":"hunter2"}', "value is no JSON: 15 bytes that cannot be read", id="a name without UTF-8"
        ),
        *(
            pytest.param(value, f"value is no JSON: {len(value)} bytes that cannot be read", id=name)
            for name, value in {
                "empty": b"",
                "blank": b" ",
                "cut off": b'{"a":"hunter2',
                "two of them": b'{"a":"hunter2"}{}',
                "trailing bytes": b'{"a":"hunter2"}\x00',
                "byte order mark": b'\xef\xbb\xbf{"a":"hunter2"}',
                "UTF-16": '{"a":"hunter2"}'.encode("utf-16-le"),
                "NaN": b'{"a":"hunter2","b":NaN}',
                "a comma too many": b'{"a":"hunter2",}',
                "a comment": b'{"a":"hunter2"/**/}',
                "a zero before": b'{"a":"hunter2","b":01}',
                "a control character": b'{"a":"hunter2\n"}',
                "no escape": rb'{"a":"hunter2\x"}',
                "a lone surrogate, untouched": rb'{"x":"hunter2\ud800"}',
                "a lone low surrogate, untouched": rb'{"x":"hunter2\udc00!"}',
                "a lone surrogate, masked": rb'{"k":"hunter2\ud800 and more"}',
                "a lone surrogate in a name": rb'{"hunter2\ud800":1}',
                "null, and more": b"null hunter2",
                "a null of another blank": b"\x0bnull",
            }.items()
        ),
        *(
            pytest.param(value, "value has JSON that is nested more than 500 deep", id=name)
            for name, value in {
                "501 deep": b'{"x":%b"hunter2"%b}' % (b"[" * 500, b"]" * 500),
                "501 deep, behind quotes": b'{"y":"a\\"]]\\\\","x":%b"hunter2"%b}' % (b"[" * 500, b"]" * 500),
                "100,000 deep": b'{"x":%b"hunter2"%b}' % (b"[" * 100_000, b"]" * 100_000),
                "100,000 objects deep": b'{"a":' * 100_000 + b'"hunter2"' + b"}" * 100_000,
            }.items()
        ),
    ],
)
def test_odd_documents_keep_their_bytes_or_fail_without_a_value(value: bytes, copy: bytes | str) -> None:
    transform = ready({"a": "drop", "k": {"keep.last": 1}, "h": {"hmac": "pii"}, "n.m": "drop"})
    given = Record(7, 0, [], None, value)

    if isinstance(copy, bytes):
        assert copy_of(transform, value) == copy
        return
    with pytest.raises(TransformFailed) as failed:
        transform.apply(given, 3)

    assert str(failed.value) == copy
    assert (failed.value.__cause__, failed.value.__context__) == (None, None)
    assert PLANTED not in repr(failed.value) + "".join(traceback.format_exception(failed.value))


def test_memory_that_is_not_enough_fails_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_raw: bytes) -> None:
        raise MemoryError(PLANTED)

    monkeypatch.setattr(json_fields, "_object", exhausted)

    with pytest.raises(TransformFailed) as failed:
        ready({"a": "drop"}).apply(Record(7, 0, [], None, b"{}"), 3)

    assert str(failed.value) == "fields ended with MemoryError"
    assert (failed.value.__cause__, failed.value.__context__) == (None, None)
