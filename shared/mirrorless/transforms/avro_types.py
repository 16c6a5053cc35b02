"""Avro's schemas, with what their names mean, and its binary encoding of values.

(https://avro.apache.org/docs/1.12.0/specification/)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, TypeVar

AvroType = dict[str, Any]
"""A schema: its `type` is a word, or a union's list. No names are left in it, so it may contain itself."""

FIXED_BYTES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
PRIMITIVES: Final = frozenset({*FIXED_BYTES, "int", "long", "bytes", "string"})

_T = TypeVar("_T")
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_LONGEST: Final = 63
"""The shift of the last seven bits that a long may have."""
_FLOATS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_BITS: Final = {"int": 31, "long": 63}


def resolved(definitions: Iterable[str]) -> AvroType:
    """The last of some schemas, each of which may name types of those before it.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: one is no schema, or names what there is not.
    """
    known: dict[str, AvroType] = {}
    return [_resolved(json.loads(definition), "", known) for definition in definitions][-1]


def _resolved(schema: Any, space: str, known: dict[str, AvroType]) -> AvroType:  # noqa: PLR0911 -- a kind in each
    if isinstance(schema, list):
        return {"type": [_resolved(branch, space, known) for branch in schema]}
    if isinstance(schema, str):
        if schema in PRIMITIVES:
            return {"type": schema}
        return known.get(_full(schema, space)) or known[_full(schema, "")]
    kind = schema["type"]
    if not isinstance(kind, str):
        return _resolved(kind, space, known)
    if kind in _NAMED:
        full = _full(schema["name"], schema.get("namespace", space))
        found = known[full] = dict(schema)
        if "fields" in schema:
            inner, found["type"] = full.rpartition(".")[0], "record"
            found["fields"] = [{**each, "type": _resolved(each["type"], inner, known)} for each in schema["fields"]]
        return found
    if kind in ("array", "map"):
        of = "items" if kind == "array" else "values"
        return {"type": kind, of: _resolved(schema[of], space, known)}
    return dict(schema) if kind in PRIMITIVES else _resolved(kind, space, known)


def _full(name: str, space: str) -> str:
    return name if "." in name else f"{space}.{name}"


def long_at(body: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends. Raises ValueError, IndexError: there is none."""
    byte = body[at]
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > _LONGEST:
            raise ValueError("a number of more than ten bytes")
        at += 1
        byte = body[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), at + 1


def content_at(body: bytes, at: int) -> tuple[int, int]:
    """Where a string's or bytes' content begins, and where it ends. Raises as `long_at`."""
    length, begin = long_at(body, at)
    if length < 0:
        raise ValueError("a length below 0")
    return begin, begin + length


def items_at(body: bytes, at: int) -> tuple[int, int]:
    """How many items the next block of an array or a map has, 0 behind the last; and where they begin.

    Raises as `long_at`, and where the items are more than bytes: items may have no bytes, and their number no end.
    """
    count, at = long_at(body, at)
    if count < 0:
        count = -count
        _, at = long_at(body, at)
    if count > len(body):
        raise ValueError("more items than bytes")
    return count, at


def chosen(choices: Sequence[_T], number: int) -> _T:
    """A union's branch or an enum's symbol. Raises IndexError: there is none."""
    if number < 0:
        raise IndexError(number)
    return choices[number]


def long_bytes(number: int) -> bytes:
    """A number's encoding."""
    rest = (number << 1) ^ (number >> _LONGEST)
    encoded = bytearray()
    while rest > 0x7F:  # noqa: PLR2004 -- seven bits
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*encoded, rest))


def sized(content: bytes) -> bytes:
    """The encoding of a string or of bytes."""
    return long_bytes(len(content)) + content


def encoded(schema: AvroType, value: Any) -> bytes:  # noqa: C901, PLR0911, PLR0912 -- a case for each type
    """The encoding of what is written in JSON as a schema writes defaults; of a union by the first branch that fits.

    Raises:
        ValueError: it does not fit.
    """
    kind = schema["type"]
    match kind, value:
        case list(), _:
            for number, branch in enumerate(kind):
                with suppress(ValueError):
                    return long_bytes(number) + encoded(branch, value)
        case "null", None:
            return b""
        case "boolean", bool():
            return bytes([value])
        case "int" | "long", int() if not isinstance(value, bool) and -1 <= value >> _BITS[kind] <= 0:
            return long_bytes(value)
        case "float" | "double", int() | float() if not isinstance(value, bool):
            with suppress(OverflowError, struct.error):
                return _FLOATS[kind].pack(value)
        case "string", str():
            return sized(value.encode())
        case "bytes", str():
            return sized(value.encode("latin-1"))
        case "fixed", str() if len(value) == schema["size"]:
            return value.encode("latin-1")
        case "enum", str():
            return long_bytes(schema["symbols"].index(value))
        case "array", list():
            return _block([encoded(schema["items"], each) for each in value])
        case "map", dict():
            return _block([sized(name.encode()) + encoded(schema["values"], each) for name, each in value.items()])
        case "record", dict():
            named = {each["name"]: each.get("default", ...) for each in schema["fields"]}
            if value.keys() <= named.keys():
                whole = named | value
                return b"".join(encoded(each["type"], whole[each["name"]]) for each in schema["fields"])
    raise ValueError(f"it does not fit the type {word_of(schema)}")


def word_of(schema: AvroType) -> str:
    """Its type, for errors: names and symbols are left out."""
    kind = schema["type"]
    if isinstance(kind, list):
        return f"union of {', '.join(map(word_of, kind))}"
    return f"{kind} ({schema['logicalType']})" if "logicalType" in schema else str(kind)


def _block(items: list[bytes]) -> bytes:
    return b"".join((long_bytes(len(items)), *items, b"\0")) if items else b"\0"


def decoded(schema: AvroType, body: bytes, at: int = 0) -> tuple[Any, int]:  # noqa: C901, PLR0911 -- as above
    """A value, and where it ends. Decimals are text; so are other bytes, each of them one character.

    Raises:
        ValueError, LookupError, struct.error: it is no such value. Where it ends behind the body it is none either.
    """
    kind = schema["type"]
    match kind:
        case "null":
            return None, at
        case "boolean":
            return body[at] != 0, at + 1
        case "int" | "long":
            return long_at(body, at)
        case "float" | "double":
            return _FLOATS[kind].unpack_from(body, at)[0], at + FIXED_BYTES[kind]
        case "string":
            begin, end = content_at(body, at)
            return body[begin:end].decode(), end
        case "bytes" | "fixed":
            begin, end = content_at(body, at) if kind == "bytes" else (at, at + schema["size"])
            return _text_of(schema, body[begin:end]), end
        case "enum":
            number, end = long_at(body, at)
            return chosen(schema["symbols"], number), end
        case "record":
            record = {}
            for field in schema["fields"]:
                record[field["name"]], at = decoded(field["type"], body, at)
            return record, at
        case "array" | "map":
            return _decoded_items(schema, body, at)
        case "unread":
            return None, schema["over"](body, at, None)
    number, at = long_at(body, at)
    return decoded(chosen(kind, number), body, at)


def _decoded_items(schema: AvroType, body: bytes, at: int) -> tuple[Any, int]:
    elements: list[Any] = []
    members: dict[str, Any] = {}
    while True:
        count, at = items_at(body, at)
        if not count:
            return (elements if schema["type"] == "array" else members), at
        for _ in range(count):
            if schema["type"] == "array":
                element, at = decoded(schema["items"], body, at)
                elements.append(element)
            else:
                begin, end = content_at(body, at)
                members[body[begin:end].decode()], at = decoded(schema["values"], body, end)


def _text_of(schema: AvroType, content: bytes) -> str:
    if schema.get("logicalType") == "decimal":
        return str(Decimal(int.from_bytes(content, "big", signed=True)).scaleb(-schema.get("scale", 0)))
    return content.decode("latin-1")
