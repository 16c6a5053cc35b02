"""Records from the columns of an archive, byte for byte: null is not empty, headers keep their order and repeat.

Rows of another shape than the documented one are refused: nothing is guessed about records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from mirrorless.errors import ArchiveBroken
from mirrorless.record import Headers, Record

CONTENT: Final = ("key", "value", "headers")

_HINT = "bring the archive into the schema that the documentation shows; nothing is guessed about records"


def check_schema(schema: Any, in_path: Mapping[str, str], where: str) -> None:
    """Check that a file has the columns of records.

    Raises:
        ArchiveBroken: naming the first column that is missing or of another type.
    """
    wanted = {
        "topic": (_is_text, "string"),
        "partition": (kinds.is_integer, "int"),
        "offset": (kinds.is_integer, "bigint"),
        "timestamp_ms": (kinds.is_integer, "bigint, ms since the epoch"),
        "key": (_is_bytes, "binary"),
        "value": (_is_bytes, "binary"),
        "headers": (_is_headers, "array<struct<key string, value binary>>"),
    }
    for name, (fits, described) in wanted.items():
        if name in in_path:
            continue
        if name not in schema.names:
            raise ArchiveBroken(f"the file has no column {name} ({described})", where=where, hint=_HINT)
        found = schema.field(name).type
        if not fits(found):
            raise ArchiveBroken(f"column {name} is {found}, not {described}", where=where, hint=_HINT)


def records_of(batch: Any, where: str) -> list[Record]:
    """A batch's rows as records.

    Raises:
        ArchiveBroken: a row without a timestamp, or a header without a name.
    """
    timestamps = batch.column("timestamp_ms")
    if timestamps.null_count:
        raise ArchiveBroken("a record has no timestamp (-1 stands for none)", where=where, hint=_HINT)
    return [
        Record(offset, timestamp, headers, key, value)
        for offset, timestamp, headers, key, value in zip(
            batch.column("offset").to_pylist(),
            timestamps.to_pylist(),
            _headers(batch.column("headers"), where),
            _bytes(batch.column("key")),
            _bytes(batch.column("value")),
            strict=True,
        )
    ]


def _bytes(column: Any) -> list[bytes | None]:
    found: list[bytes | None] = (column.cast(pa.large_binary()) if _is_text(column.type) else column).to_pylist()
    return found


def _headers(column: Any, where: str) -> list[Headers]:
    pairs = column.flatten()
    if not len(pairs):
        return [[] for _ in range(len(column))]
    names = pairs.field(_index(pairs.type, "key")).to_pylist()
    values = _bytes(pairs.field(_index(pairs.type, "value")))
    if pairs.null_count or None in names:
        raise ArchiveBroken("a header has no name", where=where, hint=_HINT)
    every = list(zip(names, values, strict=True))
    found, at = [], 0
    for length in column.value_lengths().to_pylist():
        end = at + (length or 0)
        found.append(every[at:end])
        at = end
    return found


def _index(kind: Any, name: str) -> int:
    index: int = kind.get_field_index(name)
    return index


def _is_text(kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or _is_text(kind))


def _is_headers(kind: Any) -> bool:
    if not (kinds.is_list(kind) or kinds.is_large_list(kind)) or not kinds.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    places = [_index(pair, name) for name in ("key", "value")]
    return -1 not in places and _is_text(pair.field(places[0]).type) and _is_bytes(pair.field(places[1]).type)
