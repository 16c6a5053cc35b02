"""The effect of `fields` on an Avro value: what they change is cut out of its bytes, and all others stay as they are.

0x00, id in 4 bytes                      Confluent's serializers, and whose registries have its interface
0x03, 0x00 or 0x05 (zlib), id in 16      AWS Glue's; what was changed is not compressed again, for one zlib makes
                                         other bytes than the next, and a proof has to make the same

A writer's schema becomes a walk over a record's bytes, in which the changes of a rule are noted; made once for each
schema. It goes to the record's end, whatever it changes: what another schema wrote seldom ends where this one says.
Avro's schemas are resolved, with what their names mean, and values encoded and decoded, as its specification says.
(https://avro.apache.org/docs/1.12.0/specification/)
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

import msgspec

from mirrorless.transforms.masks import KeysInUse, TransformFailed, bytes_change
from mirrorless.transforms.paths import PathStep, Tree, Wildcard, spelled
from mirrorless.transforms.rules import Mask

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


SchemaId: TypeAlias = int | UUID

_Made = TypeVar("_Made")

LONGEST: Final = 50_000_000
"""Bytes of a value that was compressed: a byte of zlib may be a thousand, and a function has 512 MB."""
_UNREADABLE: Final = (ValueError, LookupError, OverflowError, RecursionError, struct.error)
_NO_SCHEMA: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class WriterSchemas(Protocol):
    """The schemas that records were written by: a registry's, in which an id never changes its meaning."""

    def definitions(self, schema_id: SchemaId) -> tuple[str, ...]:
        """A schema's JSON, behind that of each schema that it refers to.

        Raises:
            TransformFailed: there is no such schema, or it is none of Avro.
            Retriable: the registry does not answer.
        """
        ...


class AvroFields:
    """The fields of one source topic's records."""

    def __init__(self, tree: Tree, keys: KeysInUse, schemas: WriterSchemas, read: frozenset[str] | None = None) -> None:
        """Args: read: the names at the top of a value that `keep` reads; None: it reads all of it."""
        self._tree, self._keys, self._schemas, self._read = tree, keys, schemas, read
        self._types: dict[SchemaId, AvroType] = {}
        self._read_types: dict[SchemaId, AvroType] = {}
        self._walks: dict[SchemaId, Walk] = {}

    def decoded(self, value: bytes) -> Any:
        """What `keep` reads of a value. Raises TransformFailed; Retriable: the registry does not answer."""
        schema_id, _, body = framed(value)
        schema = self._read_types.get(schema_id) or self._read_type(schema_id)
        try:
            read, end = decoded(schema, body)
        except _UNREADABLE:
            end = -1
        if end != len(body):
            raise _unlike(schema_id, body)
        return read

    def edited(self, value: bytes, partition: int, offset: int) -> bytes:
        """A value as it is copied. Raises as `decoded`."""
        schema_id, head, body = framed(value)
        walk = self._walks.get(schema_id) or self._walk(schema_id)
        edits = Edits(partition, offset)
        try:
            end = walk(body, 0, edits)
        except _UNREADABLE:
            end = -1
        if end != len(body):
            raise _unlike(schema_id, body)
        if not edits.cuts:
            return value
        parts, at = [head], 0
        for begin, end, new in edits.cuts:
            parts += (body[at:begin], new)
            at = end
        return b"".join((*parts, body[at:]))

    def _type(self, schema_id: SchemaId) -> AvroType:
        if schema_id not in self._types:
            definitions = self._schemas.definitions(schema_id)
            self._types[schema_id] = _made(lambda: resolved(definitions), schema_id)
        return self._types[schema_id]

    def _read_type(self, schema_id: SchemaId) -> AvroType:
        schema = self._type(schema_id)
        self._read_types[schema_id] = found = _made(lambda: partly_read(schema, self._read), schema_id)
        return found

    def _walk(self, schema_id: SchemaId) -> Walk:
        schema = self._type(schema_id)
        walk = _made(lambda: edit_walk(schema, self._tree, self._keys), schema_id)
        self._walks[schema_id] = walk
        return walk


def _made(make: Callable[[], _Made], schema_id: SchemaId) -> _Made:
    """What is made of a schema. Raises TransformFailed: it is none."""
    try:
        return make()
    except _NO_SCHEMA:
        raise TransformFailed(f"value names schema {schema_id}, which is no schema of Avro") from None


def framed(value: bytes) -> tuple[SchemaId, bytes, bytes]:
    """The writer's schema, what a changed value begins with, and the body. Raises TransformFailed: it has no frame."""
    if value[:1] == b"\0" and len(value) >= 5:  # noqa: PLR2004 -- the frame
        return int.from_bytes(value[1:5], "big"), value[:5], value[5:]
    head, schema_id, body = value[:2], value[2:18], value[18:]
    if head in (b"\3\0", b"\3\5") and len(schema_id) == 16:  # noqa: PLR2004 -- a UUID
        return UUID(bytes=schema_id), b"\3\0" + schema_id, _inflated(body) if head[1] else body
    raise TransformFailed(f"value has {len(value)} bytes without the frame of a schema registry's serializer")


def _inflated(body: bytes) -> bytes:
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(body, LONGEST)
    except zlib.error:
        plain = b""
    if not inflate.eof or inflate.unused_data:
        raise TransformFailed(f"value has {len(body)} bytes that zlib has not made of {LONGEST:,} bytes at most")
    return plain


def _unlike(schema_id: SchemaId, body: bytes) -> TransformFailed:
    return TransformFailed(f"value names schema {schema_id}, which has not written its {len(body)} bytes")


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
