"""The effect of `fields` on an Avro value: what they change is cut out of its bytes, and all others stay as they are.

0x00, id in 4 bytes                      Confluent's serializers, and whose registries have its interface
0x03, 0x00 or 0x05 (zlib), id in 16      AWS Glue's; what was changed is not compressed again, for one zlib makes
                                         other bytes than the next, and a proof has to make the same
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from mirrorless.transforms.avro_types import AvroType, decoded, resolved
from mirrorless.transforms.avro_walks import Edits, Walk, edit_walk, partly_read
from mirrorless.transforms.masks import KeysInUse, TransformFailed
from mirrorless.transforms.paths import Tree

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
