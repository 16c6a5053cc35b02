"""Record batches as a source's log has them: with records at any offsets, as compaction leaves them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec.structs import replace

from mirrorless.records.batch_records import packed
from mirrorless.records.record import Record
from mirrorless.records.record_batch import Codec, RecordBatch

LARGEST = 1 << 30


def batch_of(records: Sequence[Record], codec: Codec = "none", *, until: int | None = None) -> RecordBatch:
    """One batch with these records at their offsets. Those that are missing in between were compacted away.

    Args:
        records: with growing offsets.
        codec: of the batch.
        until: the offset behind the batch; compaction keeps it where it removes the last records.
    """
    first, last = records[0].offset, records[-1].offset
    until = until or last + 1
    if until - first == len(records):
        (batch,) = packed(records, codec, max_bytes=LARGEST)
        return replace(batch, base_offset=first)
    by_offset = {record.offset: record for record in records}
    # Packed alone, each has the length and the timestamp of its own; the delta of its offset is put in its place.
    content = b"".join(_with_delta(by_offset[at], at - first, records[0].timestamp) for at in sorted(by_offset))
    (empty,) = packed(records, "none", max_bytes=LARGEST)
    return replace(
        empty,
        base_offset=first,
        last_offset_delta=until - first - 1,
        length=empty.size - 12 - len(empty.payload) + len(content),
        payload=memoryview(content),
    )


def in_batches(
    records: Sequence[Record], chance: random.Random, *, largest: int = 6, thinned: float = 0.2
) -> list[RecordBatch]:
    """Records in batches of one to `largest` of them, some of which compaction has thinned where there are holes."""
    found, at = [], 0
    while at < len(records):
        some = list(records[at : at + chance.randint(1, largest)])
        if chance.random() >= thinned:
            whole = next((i for i in range(1, len(some)) if some[i].offset != some[i - 1].offset + 1), len(some))
            some = some[:whole]
        found.append(batch_of(some, chance.choice(["none", "lz4", "zstd"])))
        at += len(some)
    return found


def _with_delta(record: Record, delta: int, base: int) -> bytes:
    """A record's bytes in a batch."""
    fields = b"".join(_field(each) for each in (record.key, record.value))
    headers = b"".join(_field(name.encode()) + _field(value) for name, value in record.headers)
    body = b"\0" + _varint(record.timestamp - base) + _varint(delta) + fields
    body += _varint(len(record.headers)) + headers
    return _varint(len(body)) + body


def _field(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number: int) -> bytes:
    left, found = (number << 1) ^ (number >> 63), b""
    while left > 0x7F:
        found += bytes([left & 0x7F | 0x80])
        left >>= 7
    return found + bytes([left])
