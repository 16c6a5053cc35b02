"""The original values of what a rule masks or drops, as texts: to look for them where they should not be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from mirrorless.records.record import Record
from mirrorless.transforms.paths import Tree, Wildcard, tree_of
from mirrorless.transforms.rules import Action, Mask
from mirrorless.transforms.transform import TopicTransform

MaskedValues = Callable[[Record], Iterator[str]]
"""Of a record as it is on the source: each string and number that its rule masks or drops. Bytes that are no UTF-8
have surrogates. Raises TransformFailed: the value cannot be decoded."""

_json = json.JSONDecoder(parse_int=str, parse_float=str).decode
_WHOLE: Final = "surrogateescape"


def masked_values(ready: TopicTransform) -> MaskedValues:
    """Compile a rule. What a mask leaves as it is, a short text that is cut, is not masked."""
    rule = ready.in_force.rule
    fields = tree_of(rule.fields) if rule.fields else "pass"
    others = rule.headers.get("*", "pass")

    def values(record: Record) -> Iterator[str]:
        yield from _masked(rule.key or "pass", record.key)
        for name, content in record.headers:
            yield from _masked(rule.headers.get(name, others), content)
        yield from _masked(rule.value or "pass", record.value)
        if fields != "pass" and record.value is not None:
            by_format = rule.format == "avro"  # numbers of JSON are searched for as they are written
            value = ready.value_of(record.value) if by_format else _json(record.value.decode(errors=_WHOLE))
            yield from _masked(fields, value)

    return values


def _masked(tree: Tree, value: Any) -> Iterator[str]:
    if not isinstance(tree, dict):
        yield from (text for text in _texts(value) if not _stays(tree, text))
        return
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
    others = tree.get(Wildcard.MEMBER if isinstance(value, dict) else Wildcard.ELEMENT, "pass")
    for step, each in members:
        yield from _masked(tree.get(step, others), each)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, bytes):
        yield value.decode(errors=_WHOLE)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _stays(action: Action, text: str) -> bool:
    if not isinstance(action, Mask):
        return action == "pass"
    return action.set == text or (action.truncate is not None and len(text) <= action.truncate)
