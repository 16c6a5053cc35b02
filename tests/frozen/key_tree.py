"""Key trees of JSON: one line for each path, with its JSON types, from samples or from a type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

Node = tuple[str, str]
"""A path, `flows[].topics[].lag`, and a JSON type."""


def tree(*samples: object, types: Iterable[tuple[str, Any]] = ()) -> str:
    """Every path of the samples, and of types that stand below a path, with all JSON types that were seen there.

    Args:
        samples: what `json.loads` returns.
        types: a path, and the type of what stands there: a struct, a dataclass, or a collection of such.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for sample in samples:
        for path, kind in _of_value("", sample):
            found[path].add(kind)
    for path, type_ in types:
        for below, kind in _of_type(path, msgspec.inspect.type_info(type_)):
            found[below].add(kind)
    return "".join(f"{path or '.'}: {' | '.join(sorted(kinds))}\n" for path, kinds in sorted(found.items()))


def _of_value(path: str, value: object) -> Iterator[Node]:
    match value:
        case dict():
            yield path, "object"
            for key, below in value.items():
                yield from _of_value(_under(path, key), below)
        case list():
            yield path, "array"
            for below in value:
                yield from _of_value(f"{path}[]", below)
        case None:
            yield path, "null"
        case bool():
            yield path, "boolean"
        case int() | float():
            yield path, "number"
        case str():
            yield path, "string"
        case _:
            raise TypeError(f"{path}: {value!r} is nothing that JSON has")


def _of_type(path: str, info: msgspec.inspect.Type) -> Iterator[Node]:
    """The same of a type; a key that may be left out is the same as one that is always there."""
    if isinstance(info, msgspec.inspect.UnionType):
        for each in info.types:
            yield from _of_type(path, each)
        return
    below = list(_below(info))
    array = isinstance(info, _ARRAYS) or (isinstance(info, msgspec.inspect.StructType) and info.array_like)
    yield path, "array" if array else "object" if below else _PLAIN[type(info)]
    for key, each in below:
        yield from _of_type(f"{path}{key}" if array else _under(path, key), each)


def _below(info: msgspec.inspect.Type) -> Iterator[tuple[str, msgspec.inspect.Type]]:
    """What a type holds, by key; by index in brackets for an array."""
    match info:
        case msgspec.inspect.StructType(array_like=True, fields=fields):
            yield from ((f"[{number}]", field.type) for number, field in enumerate(fields))
        case msgspec.inspect.StructType(fields=fields, tag_field=tag):
            if tag is not None:
                yield tag, msgspec.inspect.StrType()
            yield from ((field.encode_name, field.type) for field in fields)
        case msgspec.inspect.DataclassType(fields=fields):
            yield from ((field.encode_name, field.type) for field in fields)
        case msgspec.inspect.DictType(value_type=value):
            yield "*", value
        case msgspec.inspect.TupleType(item_types=types):
            yield from ((f"[{number}]", each) for number, each in enumerate(types))
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            yield "[]", item


_ARRAYS = (msgspec.inspect.ListType, msgspec.inspect.TupleType, msgspec.inspect.VarTupleType)

_PLAIN: dict[type[msgspec.inspect.Type], str] = {
    msgspec.inspect.AnyType: "anything",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.IntType: "number",
    msgspec.inspect.LiteralType: "string",
    msgspec.inspect.NoneType: "null",
    msgspec.inspect.StrType: "string",
}


def _under(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
