"""A writer's schema as a walk over a record's bytes, in which the changes of a rule are noted.

Made once for each schema. It goes to the record's end, whatever it changes: what another schema wrote seldom ends where
this one says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, TypeAlias, cast

import msgspec

from mirrorless.transforms.avro_types import (
    FIXED_BYTES,
    AvroType,
    chosen,
    content_at,
    encoded,
    items_at,
    long_at,
    long_bytes,
    sized,
    word_of,
)
from mirrorless.transforms.masks import KeysInUse, TransformFailed, bytes_change
from mirrorless.transforms.paths import PathStep, Tree, Wildcard, spelled
from mirrorless.transforms.rules import Mask

_NO_TEXT: Final = frozenset({"decimal", "big-decimal", "uuid"})
"""Logical types of strings and bytes in which a mask's text would be no value."""


@dataclass(slots=True)
class Edits:
    """What is to be changed in one body."""

    partition: int
    offset: int
    cuts: list[tuple[int, int, bytes]] = field(default_factory=list)
    """From where to where, and what comes there instead; in order."""


Walk = Callable[[bytes, int, Edits], int]
"""Go over a value that begins at a place in a body, and say where it ends."""

_Step: TypeAlias = int | Walk
"""A number where every value has so many bytes."""


def edit_walk(schema: AvroType, tree: Tree, keys: KeysInUse) -> Walk:
    """The walk in which what a tree says is done."""
    return _walk_of(_Changing(keys).step(schema, tree, "value"))


def partly_read(schema: AvroType, names: frozenset[str] | None) -> AvroType:
    """The same type, of which only some fields are read."""
    kind = schema["type"]
    if isinstance(kind, list):
        return {"type": [partly_read(branch, names) for branch in kind]}
    if names is None or kind != "record":
        return schema
    staying = _Staying()
    fields: list[dict[str, Any]] = []
    for read, some in groupby(schema["fields"], lambda each: each["name"] in names):
        found = list(some)
        over = _walk_of(_in_a_row(staying.over(each["type"]) for each in found))
        fields += found if read else [{"name": "", "type": {"type": "unread", "over": over}}]
    return {**schema, "fields": fields}


class _Staying:
    """Walks over values that stay as they are."""

    def __init__(self) -> None:
        self._records: dict[int, _Step] = {}

    def over(self, schema: AvroType) -> _Step:
        kind = schema["type"]
        if isinstance(kind, list):
            return _union([self.over(branch) for branch in kind])
        if kind in _OVER:
            return _OVER[kind]
        if kind == "fixed":
            return int(schema["size"])
        if kind == "array":
            return _blocks(self.over(schema["items"]))
        if kind == "map":
            return _blocks(_in_a_row((_over_content, self.over(schema["values"]))))
        records, known = self._records, id(schema)
        if known not in records:
            # What contains itself has a union, an array or a map between, and no number of bytes.
            records[known] = lambda body, at, edits: _walk_of(records[known])(body, at, edits)  # noqa: PLW0108 -- later
            records[known] = _in_a_row(self.over(each["type"]) for each in schema["fields"])
        return records[known]


class _Changing(_Staying):
    """Walks in which something is changed."""

    def __init__(self, keys: KeysInUse) -> None:
        super().__init__()
        self._keys = keys

    def step(self, schema: AvroType, tree: Tree, path: str) -> _Step:  # noqa: PLR0911 -- one for each kind of type
        """The walk over values of a type, in which what a tree says is done."""
        kind = schema["type"]
        if tree == "pass" or kind == "null":
            return self.over(schema)
        if isinstance(tree, Mask) and tree.set is not msgspec.UNSET:
            new = _first_that_fits(schema, tree.set)
            words = f"{path} is to be set to what does not fit its type, {word_of(schema)}"
            return _failing(words) if new is None else self._replaced(schema, new)
        if isinstance(kind, list):
            return _union([_walk_of(self.step(branch, tree, path)) for branch in kind])
        if isinstance(tree, Mask):
            return self._masked(schema, tree, path)
        if isinstance(tree, dict):
            members = any(each is Wildcard.MEMBER or isinstance(each, str) for each in tree)
            if kind == "record" and members:
                return _in_a_row(self._field(each, tree, path) for each in schema["fields"])
            if kind == "map" if members else kind == "array":
                return self._items(schema, tree, path)
        return _failing(f"{path} has the type {word_of(schema)}, which the rule is not for")

    def _field(self, described: dict[str, Any], tree: dict[PathStep, Tree], path: str) -> _Step:
        name, schema = described["name"], described["type"]
        below = tree.get(name, tree.get(Wildcard.MEMBER, "pass"))
        if below != "drop":
            return self.step(schema, below, path + spelled(name))
        new = _first_that_fits(schema, None, described.get("default", ...))
        words = f"{path}{spelled(name)} is to be dropped, and can neither be null nor has a default"
        return _failing(words) if new is None else self._replaced(schema, new)

    def _replaced(self, schema: AvroType, new: bytes) -> Walk:
        """Null stays null."""
        over, null = _walk_of(self.over(schema)), _first_that_fits(schema, None)

        def walk(body: bytes, at: int, edits: Edits) -> int:
            end = over(body, at, edits)
            if body[at:end] != null:
                edits.cuts.append((at, end, new))
            return end

        return walk

    def _masked(self, schema: AvroType, mask: Mask, path: str) -> Walk:
        if schema["type"] not in ("string", "bytes") or schema.get("logicalType") in _NO_TEXT:
            return _failing(f"{path} has the type {word_of(schema)}, in which no mask's text can stand")
        sealed = mask.encrypt and schema["type"] == "bytes"
        change = self._keys.seal_of(mask) if sealed else bytes_change(mask, path, self._keys)

        def walk(body: bytes, at: int, edits: Edits) -> int:
            begin, end = content_at(body, at)
            # Where it stands tells the values of a record apart, as its path with the indexes on it would.
            new = change(body[begin:end], edits.partition, edits.offset, f"{path}@{at}")
            edits.cuts.append((at, end, sized(cast("bytes", new))))
            return end

        return walk

    def _items(self, schema: AvroType, tree: dict[PathStep, Tree], path: str) -> Walk:
        named = schema["type"] == "map"
        of = schema["values" if named else "items"]
        over = _walk_of(self.over(of))
        walks = {
            step: None if below == "drop" else _walk_of(self.step(of, below, path + spelled(step)))
            for step, below in tree.items()
        }
        others = walks.get(Wildcard.MEMBER if named else Wildcard.ELEMENT, over)

        def walk(body: bytes, at: int, edits: Edits) -> int:
            seen = 0
            while True:
                start, first = at, len(edits.cuts)
                count, at = items_at(body, at)
                if not count:
                    return at
                items, left = at, count
                for number in range(seen, seen + count):
                    begin, step = at, cast("int | str", number)
                    if named:
                        name, at = content_at(body, at)
                        step = body[name:at].decode()
                    if change := walks.get(step, others):
                        at = change(body, at, edits)
                    else:
                        at, left = over(body, at, edits), left - 1
                        edits.cuts.append((begin, at, b""))
                seen += count
                if len(edits.cuts) > first:
                    # A block may say how many bytes it has, which may be others now; of no items is the end of all.
                    edits.cuts.insert(first, (start, items, long_bytes(left) if left else b""))

        return walk


def _over_number(body: bytes, at: int, _: Edits) -> int:
    while body[at] & 0x80:
        at += 1
    return at + 1


def _over_content(body: bytes, at: int, _: Edits) -> int:
    byte = body[at]
    return content_at(body, at)[1] if byte & 0x81 else at + 1 + (byte >> 1)


_OVER: Final[dict[str, _Step]] = {
    **FIXED_BYTES,
    **dict.fromkeys(("int", "long", "enum"), _over_number),
    **dict.fromkeys(("string", "bytes"), _over_content),
}


def _walk_of(step: _Step) -> Walk:
    if not isinstance(step, int):
        return step
    return lambda _body, at, _edits: at + step


def _in_a_row(steps: Iterable[_Step]) -> _Step:
    joined: list[_Step] = []
    for step in steps:
        if joined and isinstance(step, int) and isinstance(joined[-1], int):
            joined[-1] += step
        else:
            joined.append(step)
    if len(joined) <= 1:
        return joined[0] if joined else 0
    walks = tuple(map(_walk_of, joined))

    def walk(body: bytes, at: int, edits: Edits) -> int:
        for over in walks:
            at = over(body, at, edits)
        return at

    return walk


def _union(branches: Iterable[_Step]) -> Walk:
    walks = tuple(map(_walk_of, branches))

    def walk(body: bytes, at: int, edits: Edits) -> int:
        byte = body[at]
        if byte & 0x81:
            number, at = long_at(body, at)
            return chosen(walks, number)(body, at, edits)
        return walks[byte >> 1](body, at + 1, edits)

    return walk


def _blocks(item: _Step) -> Walk:
    def walk(body: bytes, at: int, edits: Edits) -> int:
        while True:
            count, at = items_at(body, at)
            if not count:
                return at
            if isinstance(item, int):
                at += count * item
            else:
                for _ in range(count):
                    at = item(body, at, edits)

    return walk


def _first_that_fits(schema: AvroType, *values: Any) -> bytes | None:
    for value in values:
        with suppress(ValueError):
            return encoded(schema, value)
    return None


def _failing(words: str) -> Walk:
    def walk(_body: bytes, _at: int, _edits: Edits) -> int:
        raise TransformFailed(words)

    return walk
