"""The records in a record batch: decoded from a batch of any codec, and packed into new batches.

For what is not copied as it is, and for the one record of a run that is its fingerprint.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from struct import unpack_from
from typing import Final

from cramjam import DecompressionError, lz4, snappy, zstd

from mirrorless.records.record import NOT_TEXT, Headers, Record, size_of
from mirrorless.records.record_batch import CODECS, HEADER_BYTES, MAGIC, BatchUnreadable, Codec, RecordBatch

_XERIAL: Final = b"\x82SNAPPY\x00"
"""Java's clients frame snappy so: this, two versions, then blocks, each after its length."""
_XERIAL_HEADER: Final = 16
_FRAMING: Final = 40
"""Bytes of a record's lengths, at most."""
_ZSTD_LEVEL: Final = 3
_GZIP_LEVEL: Final = 6
_NOTHING: Final[Headers] = []
"""Of all records without headers; nobody writes to a record's headers."""


def records(batch: RecordBatch) -> list[Record]:
    """All records of a batch, with their offsets in its log. U+FFFD stands for what is not UTF-8 in a header's name.

    Raises:
        BatchUnreadable: the content is no content of a batch.
    """
    return _decoded(batch, whole=True)


def last_record(batch: RecordBatch) -> Record:
    """The last record of a batch that has one. The others are passed over, which costs a twentieth.

    Raises:
        BatchUnreadable: as `records`, or the name of one of its headers is not UTF-8: no reader recognises the record.
    """
    last = _decoded(batch, whole=False)[0]
    if last.headers and any(NOT_TEXT in name for name, _ in last.headers):
        raise BatchUnreadable(
            "the name of a header of its last record is not UTF-8",
            offset=batch.base_offset,
            following=batch.next,
            by_records=True,
        )
    return last


def packed(some: Sequence[Record], codec: Codec, *, max_bytes: int) -> Iterator[RecordBatch]:
    """New batches with these records, in order, each with as many as fit.

    A batch has one record at least: the target judges whether that is too large. Offsets begin at 0 in each: whoever
    packs records has theirs.

    Args:
        some: with a timestamp each, -1 for none.
        codec: to compress by.
        max_bytes: of a batch, header included.
    """
    first = size = 0
    for i, record in enumerate(some):
        added = size_of(record) + _FRAMING
        if i > first and size + added > max_bytes - HEADER_BYTES:
            yield from _fitting(some[first:i], codec, max_bytes)
            first = i
            size = 0
        size += added
    if some[first:]:
        yield from _fitting(some[first:], codec, max_bytes)


def _fitting(some: Sequence[Record], codec: Codec, max_bytes: int) -> Iterator[RecordBatch]:
    """What compression made larger is halved."""
    batch = _pack(some, codec)
    if batch.size <= max_bytes or len(some) == 1:
        yield batch
    else:
        middle = len(some) // 2
        yield from _fitting(some[:middle], codec, max_bytes)
        yield from _fitting(some[middle:], codec, max_bytes)


def _pack(some: Sequence[Record], codec: Codec) -> RecordBatch:
    base = some[0].timestamp
    content = bytearray()
    for delta, record in enumerate(some):
        body = bytearray(b"\x00")  # attributes: none are in use
        body += _varint(record.timestamp - base)
        body += _varint(delta)
        body += _field(record.key)
        body += _field(record.value)
        body += _varint(len(record.headers))
        for name, value in record.headers:
            body += _field(name.encode())
            body += _field(value)
        content += _varint(len(body))
        content += body
    payload = memoryview(_compressed(content, codec))
    return RecordBatch(
        base_offset=0,
        length=HEADER_BYTES - 12 + len(payload),
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,  # of the header that a producer writes
        attributes=CODECS.index(codec),
        last_offset_delta=len(some) - 1,
        base_timestamp=base,
        max_timestamp=max(record.timestamp for record in some),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=len(some),
        payload=payload,
    )


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:  # noqa: PLR2004 -- seven bits in each byte
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _field(value: bytes | None) -> bytes:
    return b"\x01" if value is None else _varint(len(value)) + value


def _decoded(batch: RecordBatch, *, whole: bool) -> list[Record]:
    try:
        content = bytes(_decompressed(batch))
        return _parsed(batch, content, whole=whole)
    except BatchUnreadable as exc:
        exc.next = batch.next
        raise
    except (DecompressionError, OSError, EOFError, ValueError, IndexError) as exc:
        raise BatchUnreadable(
            f"the records of the batch cannot be decoded: {exc}", offset=batch.base_offset, following=batch.next
        ) from exc


def _parsed(batch: RecordBatch, content: bytes, *, whole: bool) -> list[Record]:
    found: list[Record] = []
    at, last = 0, batch.records_count - 1
    for i in range(batch.records_count):
        length, at = _read(content, at)
        following = at + length
        if length < 0 or following > len(content):
            raise BatchUnreadable("a record reaches beyond its batch", offset=batch.base_offset)
        if whole or i == last:
            found.append(_record(batch, content, at + 1, following))
        at = following
    if at != len(content) or not found:
        raise BatchUnreadable("the batch holds another number of records than it says", offset=batch.base_offset)
    return found


def _record(batch: RecordBatch, content: bytes, at: int, following: int) -> Record:
    since, at = _read(content, at)
    delta, at = _read(content, at)
    key, at = _bytes(content, at)
    value, at = _bytes(content, at)
    count, at = _read(content, at)
    headers = _NOTHING
    if count:
        headers = []
        for _ in range(count):
            name, at = _bytes(content, at)
            header, at = _bytes(content, at)
            if name is None:
                raise BatchUnreadable("a header has no name", offset=batch.base_offset)
            headers.append((name.decode(errors="replace"), header))
    if at != following:
        raise BatchUnreadable("a record has another length than it says", offset=batch.base_offset)
    timestamp = batch.max_timestamp if batch.has_log_append_time else batch.base_timestamp + since
    return Record(batch.base_offset + delta, timestamp, headers, key, value)


def _read(content: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and the place behind it."""
    byte = content[at]
    at += 1
    if byte < 0x80:  # noqa: PLR2004 -- most are so small
        return (byte >> 1) ^ -(byte & 1), at
    number, shift = byte & 0x7F, 7
    while True:
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 -- the last one
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _bytes(content: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read(content, at)
    if length < 0:
        return None, at
    return content[at : at + length], at + length


def _decompressed(batch: RecordBatch) -> bytes | memoryview:
    payload = batch.payload
    match batch.codec:
        case "none":
            return payload
        case "gzip":
            return gzip.decompress(payload)
        case "snappy":
            return _unsnapped(payload)
        case "lz4":
            return memoryview(lz4.decompress(payload))
        case "zstd":
            return memoryview(zstd.decompress(payload))


def _unsnapped(payload: memoryview) -> bytes | memoryview:
    if bytes(payload[: len(_XERIAL)]) != _XERIAL:
        return memoryview(snappy.decompress_raw(payload))
    found, at = bytearray(), _XERIAL_HEADER
    while at < len(payload):
        (length,) = unpack_from(">I", payload, at)
        found += memoryview(snappy.decompress_raw(payload[at + 4 : at + 4 + length]))
        at += 4 + length
    return bytes(found)


def _compressed(content: bytearray, codec: Codec) -> bytes | bytearray:
    match codec:
        case "none":
            return content
        case "gzip":
            return gzip.compress(content, _GZIP_LEVEL, mtime=0)
        case "snappy":
            return bytes(snappy.compress_raw(content))
        case "lz4":
            # Java's clients refuse frames whose blocks depend on each other.
            compressor = lz4.Compressor(block_linked=False)
            compressor.compress(bytes(content))
            return bytes(compressor.finish())
        case "zstd":
            return bytes(zstd.compress(content, _ZSTD_LEVEL))
