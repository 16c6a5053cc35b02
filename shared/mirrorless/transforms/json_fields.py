"""The effect of `fields` on a JSON value. Only what paths lead through is opened, so all else keeps its bytes.

An object or array that is opened is written anew: without blanks, and of members with one name the last. What a path
does not find, or finds null on its way, it leaves as it is. Where anything else stands in its way, the rule fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from mirrorless.transforms.masks import KeysInUse, TransformFailed, text_change
from mirrorless.transforms.paths import Tree, Wildcard, spelled
from mirrorless.transforms.rules import Action, Mask

JsonEdit = Callable[[Raw | bytes, int, int, str], bytes | None]
"""The new JSON text of a value of a partition and an offset, whose path has the indexes and names that it really has;
None: drop it."""

DEEPEST: Final = 500
"""Levels of objects and arrays in a document."""

_NESTING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_LEVELS: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_NULL: Final = b"null"
_KINDS: Final = {"{": "an object", "[": "an array", '"': "a string", "t": "true", "f": "false"}
_QUOTE: Final = ord('"')
_NUMBER: Final = frozenset(b"-0123456789")

_object = msgspec.json.Decoder(dict[str, Raw]).decode
_array = msgspec.json.Decoder(list[Raw]).decode
_string = msgspec.json.Decoder(str).decode
_anything = msgspec.json.Decoder(float_hook=float).decode
_encode = msgspec.json.Encoder().encode


def json_fields(tree: Tree, keys: KeysInUse) -> Callable[[bytes, int, int, str], bytes | None]:
    """Compile what is to do in a value."""
    edit = _edit(tree, keys, "value")

    def edited(value: bytes, partition: int, offset: int, at: str) -> bytes | None:
        _refuse_deep(value)
        return edit(value, partition, offset, at)

    return edited


def _edit(tree: Tree, keys: KeysInUse, path: str) -> JsonEdit:
    """The same at a place. Errors have its path as the rule has it: a record's names may tell too much."""
    if not isinstance(tree, dict):
        return _leaf(tree, keys, path)
    edits = {step: _edit(below, keys, path + spelled(step)) for step, below in tree.items()}
    members = {step: edit for step, edit in edits.items() if isinstance(step, str)}
    elements = {step: edit for step, edit in edits.items() if isinstance(step, int)}
    if Wildcard.MEMBER in edits:
        return _all_members(members, edits[Wildcard.MEMBER], path)
    if members:
        return _some_members(members, path)
    return _elements(elements, edits.get(Wildcard.ELEMENT), path)


def json_value(value: bytes) -> Any:
    """A value's content; numbers without bound. Raises TransformFailed: it is no JSON, or too deep."""
    _refuse_deep(value)
    try:
        return _anything(value)
    except ValueError:
        raise TransformFailed(f"value is no JSON: {len(value)} bytes that cannot be read") from None


def _refuse_deep(value: bytes) -> None:
    """A decoder goes as deep as the stack has room, which is another for a function, a job and a proof."""
    if value.count(b"[") + value.count(b"{") <= DEEPEST:
        return
    depth = 0
    for found in _NESTING.finditer(value):
        depth += _LEVELS.get(found[0], 0)
        if depth > DEEPEST:
            raise TransformFailed(f"value has JSON that is nested more than {DEEPEST} deep")


def _some_members(edits: dict[str, JsonEdit], path: str) -> JsonEdit:
    steps = [(name, spelled(name), edit) for name, edit in edits.items()]

    def edit_object(raw: Raw | bytes, partition: int, offset: int, at: str) -> bytes:
        try:
            members = _object(raw)
        except ValueError as exc:
            return _unopened(raw, path, "an object", exc)
        for name, step, edit in steps:
            old = members.get(name)
            if old is not None:
                new = edit(old, partition, offset, at + step)
                if new is None:
                    del members[name]
                else:
                    members[name] = Raw(new)
        return _encode(members)

    return edit_object


def _all_members(edits: dict[str, JsonEdit], others: JsonEdit, path: str) -> JsonEdit:
    def edit_object(raw: Raw | bytes, partition: int, offset: int, at: str) -> bytes:
        try:
            members = _object(raw)
        except ValueError as exc:
            return _unopened(raw, path, "an object", exc)
        kept = {}
        for name, old in members.items():
            edit = edits.get(name, others)
            if edit is _passed:
                kept[name] = old
            elif edit is not _dropped:  # most are: a list of what may pass should not cost by what may not
                new = edit(old, partition, offset, at + spelled(name))
                if new is not None:
                    kept[name] = Raw(new)
        return _encode(kept)

    return edit_object


def _elements(edits: dict[int, JsonEdit], others: JsonEdit | None, path: str) -> JsonEdit:
    def edit_array(raw: Raw | bytes, partition: int, offset: int, at: str) -> bytes:
        try:
            elements = _array(raw)
        except ValueError as exc:
            return _unopened(raw, path, "an array", exc)
        kept = []
        for index, old in enumerate(elements):
            edit = edits.get(index, others)
            new = edit(old, partition, offset, f"{at}[{index}]") if edit else old
            if new is not None:
                kept.append(Raw(new))
        return _encode(kept)

    return edit_array


def _unopened(raw: Raw | bytes, path: str, expected: str, exc: ValueError) -> bytes:
    """Null, where an object or an array may be."""
    text = bytes(raw).strip(b" \t\r\n")
    if text == _NULL:
        return text
    if isinstance(exc, msgspec.ValidationError) and not text.startswith(b"n"):
        raise _unfit(path, text, expected) from None
    raise TransformFailed(f"{path} is no JSON: {len(raw)} bytes that cannot be read") from None


def _unfit(path: str, text: bytes, expected: str) -> TransformFailed:
    return TransformFailed(f"{path} has {_KINDS.get(text[:1].decode(), 'a number')}, where the rule is for {expected}")


def _leaf(action: Action, keys: KeysInUse, path: str) -> JsonEdit:
    if not isinstance(action, Mask):
        return _dropped if action == "drop" else _passed
    if action.set is not msgspec.UNSET:
        fixed = _encode(action.set)
        return lambda raw, _partition, _offset, _at: _NULL if bytes(raw) == _NULL else fixed
    if action.hmac or action.encrypt:
        return _keyed(action, keys, path)
    return _cut(action, path)


def _dropped(_raw: Raw | bytes, _partition: int, _offset: int, _at: str) -> None:
    return None


def _passed(raw: Raw | bytes, _partition: int, _offset: int, _at: str) -> bytes:
    return bytes(raw)


def _keyed(mask: Mask, keys: KeysInUse, path: str) -> JsonEdit:
    text_of = keys.text_of(mask)
    opens = mask.hmac != ""

    def keyed(raw: Raw | bytes, partition: int, offset: int, at: str) -> bytes:
        plain = bytes(raw)
        if plain == _NULL:
            return plain
        if opens and plain[0] == _QUOTE:
            plain = _text(plain, path).encode()
        return f'"{text_of(plain, partition, offset, at)}"'.encode()

    return keyed


def _cut(mask: Mask, path: str) -> JsonEdit:
    change = text_change(mask)
    numbers = _NUMBER if mask.truncate is None else frozenset()

    def cut(raw: Raw | bytes, _partition: int, _offset: int, _at: str) -> bytes:
        plain = bytes(raw)
        if plain[0] == _QUOTE:
            return _encode(change(_text(plain, path)))
        if plain[0] in numbers:
            return _encode(change(plain.decode()))
        if plain == _NULL:
            return plain
        raise _unfit(path, plain, "a string or a number" if numbers else "a string")

    return cut


def _text(plain: bytes, path: str) -> str:
    try:
        return _string(plain)
    except ValueError:
        raise TransformFailed(f"{path} has a string that is no Unicode text") from None
