"""A record batch as it lies in a partition's log: its header, its records unparsed, and the rules of copying it.

A batch is copied by rewriting its header of 61 bytes. What follows the header is never parsed, and only a view of it
is held: a batch keeps the whole answer alive that it came in. Its records are the matter of `batch_records`.
(https://kafka.apache.org/documentation/#recordbatch)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Final, Literal

import msgspec
from crc32c import crc32c

from mirrorless.errors import MirrorlessError

HEADER_BYTES: Final = 61
DAMAGED: Final = "DAMAGED"
UNKNOWN_CODEC: Final = "UNKNOWN_CODEC"
"""Causes for which a batch cannot be read; see `protocol/refusal_causes.py`."""
MAGIC: Final = 2
"""The only format that Kafka 4 writes. Logs of older brokers may still hold 0 and 1."""

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: Final[tuple[Codec, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")
"""By number."""

_FRONT: Final = Struct(">qi")
_HEADER: Final = Struct(">qiibIhiqqqhii")
_CHECKED: Final = Struct(">hiqqqhii")
"""What the checksum covers of a header: all behind it."""
_CHECKED_FROM: Final = HEADER_BYTES - _CHECKED.size
_PROVED: Final = Struct(">biqiI")
"""Of a batch's digest: codec, last offset delta, base timestamp, number of records, bytes of the payload."""
_LOG_OVERHEAD: Final = _FRONT.size
_MAGIC_AT: Final = 16

_CODEC_BITS: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_KEPT: Final = _CODEC_BITS | _LOG_APPEND_TIME
_SEQUENCES: Final = 2**31


class BatchUnreadable(MirrorlessError):
    """A batch of an old format, of a codec that nobody wrote down, or whose bytes are damaged. `where` has its offset.

    Attributes:
        offset: of the batch.
        next: the offset behind it, where its log shows that.
        cause: of `refusal_causes`.
        old_format: whether clients that parse records can read it.
        by_records: whether its records can be read, all but what a name of a header is.
    """

    def __init__(
        self,
        what: str,
        *,
        offset: int,
        following: int | None = None,
        cause: str = DAMAGED,
        old_format: bool = False,
        by_records: bool = False,
        hint: str = "",
    ) -> None:
        super().__init__(what, where=f"batch @ {offset}", hint=hint)
        self.offset = offset
        self.next = following
        self.cause = cause
        self.old_format = old_format
        self.by_records = by_records


class RecordBatch(msgspec.Struct, frozen=True, gc=False):
    """One batch. The fields are those of the header, in its order, and the payload."""

    base_offset: int
    length: int
    """Bytes behind this field of the header."""
    leader_epoch: int
    """Of the leader that appended it."""
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """Records have their difference to it; ms since the epoch, -1 for none."""
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int
    payload: memoryview
    """What follows the header: the records, compressed by the codec."""

    @property
    def last_offset(self) -> int:
        """The offset of the last record that was written with it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next(self) -> int:
        """The offset behind it."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        """All its bytes: what `max.message.bytes` limits."""
        return self.length + _LOG_OVERHEAD

    @property
    def codec(self) -> Codec:
        """How the payload is compressed.

        Raises:
            BatchUnreadable: by a codec of a later Kafka.
        """
        number = self.attributes & _CODEC_BITS
        if number >= len(CODECS):
            raise BatchUnreadable(
                f"the batch is compressed by the unknown codec {number}",
                offset=self.base_offset,
                following=self.next,
                cause=UNKNOWN_CODEC,
            )
        return CODECS[number]

    @property
    def is_control(self) -> bool:
        """Whether it holds the marker of a transaction instead of records."""
        return self.attributes & _CONTROL != 0

    @property
    def is_transactional(self) -> bool:
        """Whether a transaction decides if readers see it."""
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def has_log_append_time(self) -> bool:
        """Whether the time of all its records is `max_timestamp`: their own differences do not count."""
        return self.attributes & _LOG_APPEND_TIME != 0


def batches(buffer: memoryview) -> Iterator[RecordBatch]:
    """The batches of a part of a log, in order. One that is cut off at the end is left out.

    Raises:
        BatchUnreadable: a batch has an old format, or its checksum is not that of its bytes. All before it were given.
    """
    at, end = 0, len(buffer)
    unpack, header = _HEADER.unpack_from, HEADER_BYTES
    while at + _MAGIC_AT < end:
        offset, length = _FRONT.unpack_from(buffer, at)
        following = at + _LOG_OVERHEAD + length
        if buffer[at + _MAGIC_AT] < MAGIC:
            raise BatchUnreadable(
                f"the batch has the old format {buffer[at + _MAGIC_AT]}", offset=offset, old_format=True
            )
        if length < header - _LOG_OVERHEAD or buffer[at + _MAGIC_AT] != MAGIC:
            raise _damaged(f"the batch claims format {buffer[at + _MAGIC_AT]} and a length of {length} bytes", offset)
        if following > end:
            return
        batch = RecordBatch(*unpack(buffer, at), buffer[at + header : following])  # type: ignore[call-arg]  # 13 fields
        if crc32c(buffer[at + _CHECKED_FROM : following]) != batch.crc:
            # What the header says of its last record may be what is damaged: the batch behind it says it better. Where
            # none is seen, two numbers of the header have to agree.
            behind = batch.next if batch.records_count == batch.last_offset_delta + 1 else None
            if following + _MAGIC_AT < end and buffer[following + _MAGIC_AT] == MAGIC:
                behind = _FRONT.unpack_from(buffer, following)[0]
            raise _damaged("the checksum of the batch is not that of its bytes", offset, behind)
        yield batch
        at = following


def _damaged(what: str, offset: int, behind: int | None = None) -> BatchUnreadable:
    return BatchUnreadable(
        f"{what}: the source's log is damaged there, compare its replicas", offset=offset, following=behind
    )


def produced(batch: RecordBatch, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The header under which a transactional producer writes the batch; its payload follows unchanged."""
    checked = _CHECKED.pack(
        batch.attributes & _KEPT | _TRANSACTIONAL,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        batch.records_count,
    )
    crc = crc32c(batch.payload, crc32c(checked))
    return _UNCHECKED.pack(0, batch.length, -1, MAGIC, crc) + checked


_UNCHECKED: Final = Struct(">qiibI")


def next_sequence(base_sequence: int, batch: RecordBatch) -> int:
    """The sequence number of the batch that follows this one in its partition."""
    return (base_sequence + batch.last_offset_delta + 1) % _SEQUENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTerms:
    """What a lane and its remote topic demand of a batch that is copied as it is."""

    max_message_bytes: int
    """The remote topic's `max.message.bytes`."""
    compression_type: str = "producer"
    """The remote topic's: another codec than the batch's makes the broker compress anew, and no digest holds there."""
    by_record: bool = False
    """Whether the lane asks for each record: a filter, a change of headers, a quarantine."""


Obstacle = Literal["control", "empty", "cut", "thinned", "log_append_time", "too_large", "compressed_anew", "by_record"]
"""Why a batch is not copied as it is. A control batch and one without records are dropped; the records of any other are
packed anew."""


def obstacle(  # noqa: PLR0911 -- a reason in each line, the first one counts
    batch: RecordBatch, terms: PassTerms, *, position: int, end: int | None = None
) -> Obstacle | None:
    """Why this batch cannot be copied as it is; None where it can.

    Args:
        batch: from the log.
        terms: of the lane.
        position: the first offset that is wanted.
        end: the first offset that is not wanted any more; None: all are.
    """
    if batch.is_control:
        return "control"
    if not batch.records_count:
        return "empty"  # compaction keeps the header of a producer's last batch
    if batch.base_offset < position or (end is not None and batch.next > end):
        return "cut"
    if batch.records_count != batch.last_offset_delta + 1:
        return "thinned"  # brokers refuse it from a producer
    if batch.has_log_append_time:
        return "log_append_time"  # brokers accept it from a producer, and each record's own difference begins to count
    if terms.by_record:
        return "by_record"
    if batch.size > terms.max_message_bytes:
        return "too_large"
    if terms.compression_type not in ("producer", _NAMES_OF_TOPICS.get(batch.codec, batch.codec)):
        return "compressed_anew"
    return None


_NAMES_OF_TOPICS: Final = {"none": "uncompressed"}


def batch_digest(produced_batches: Iterable[RecordBatch]) -> bytes:
    """32 bytes that change if any byte of any record, a timestamp, a boundary or the order of the batches changes.

    SHA-256 over each batch in turn: codec (1 byte), last offset delta (4), base timestamp (8), number of records (4),
    bytes of the payload (4), big-endian, and the payload. A reader of the target computes it from the batches there:
    what a broker changes of a batch when it appends it is left out.
    """
    digest = sha256()
    for batch in produced_batches:
        digest.update(
            _PROVED.pack(
                batch.attributes & _CODEC_BITS,
                batch.last_offset_delta,
                batch.base_timestamp,
                batch.records_count,
                len(batch.payload),
            )
        )
        digest.update(batch.payload)
    return digest.digest()
