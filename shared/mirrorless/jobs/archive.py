"""The log of a lane from an archive's pieces: merged by offset, each record once, every hole counted.

An archive is a folder of Parquet files with raw records, as topic archivers write them:

    topic string, partition int, offset bigint, timestamp_ms bigint, key binary?, value binary?,
    headers array<struct<key string, value binary?>>; others (leader_epoch, ingest_ts, run_id, ...) are not read

`topic` and `partition` may stand in the path instead (`topic=orders/partition=3/`). Archives are written at least once:
the same offset may stand in several files, with the same record. Two different records of one offset are an error.

An offset that no file holds is a hole. A transaction marker, an aborted record and a compacted one leave one, and so
does a record that was never archived: an archive does not show the difference, a log does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mirrorless.errors import ArchiveBroken
from mirrorless.jobs.copy_task import CHUNK_BYTES, CHUNK_RECORDS, Chunk, OffsetRange
from mirrorless.records.record import Record

HOLES: Final = 20
"""Listed of a lane, at most; all are counted."""

SHOWN: Final = 5
"""Of the listed ones, in one sentence."""

_HOLES_ARE: Final = (
    "Transaction markers, aborted and compacted records leave such holes, and so do records that were never archived; "
    "an archive does not show the difference"
)


class ArchivePiece(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a lane in one row group of a file."""

    file: str
    group: int
    first: int
    """Least upstream offset."""
    last: int
    """Greatest upstream offset."""
    rows: int


class LaneSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a lane that an archive has, counted before anything is copied."""

    topic: str
    partition: int
    first: int = 0
    next: int = 0
    """Upstream offsets [first, next): the requested ones, as far as the archive reaches, or [0, 0)."""
    records: int = 0
    """Each offset once."""
    copies: int = 0
    """Rows beyond the first of an offset."""
    missing: int = 0
    """Offsets between the first and the last that no file holds."""
    holes: tuple[OffsetRange, ...] = ()
    """The first of them."""
    hole_count: int = 0
    oldest: int = -1
    newest: int = -1
    """Timestamps, ms since the epoch; -1 where no record has one."""
    bytes: int = 0
    """Of keys, values and headers by the files' footers: a little more or less than will be copied."""
    clusters: tuple[str, ...] = ()
    """Every `src_cluster` that the footers name."""

    @property
    def what_is_missing(self) -> str:
        """The missing offsets in words, with their possible causes; empty where none is missing."""
        if not self.missing:
            return ""
        places = ", ".join(f"[{each.first}, {each.next})" for each in self.holes[:SHOWN])
        more = f" and {self.hole_count - SHOWN:,} more" if self.hole_count > SHOWN else ""
        text = f"{self.missing:,} of {self.next - self.first:,} offsets are not in the archive: {places}{more}"
        return f"{text}. {_HOLES_ARE}"


Survey = Callable[[Mapping[tuple[str, int], OffsetRange]], Mapping[tuple[str, int], LaneSurvey]]
"""Surveys ranges of lanes, by topic and partition."""


def merged(
    pieces: Iterable[ArchivePiece], read: Callable[[ArchivePiece], Iterator[list[Record]]], *, where: str
) -> Iterator[list[Record]]:
    """Every record of a lane once, in order of offset, in lists of any length.

    A piece is opened when the merge comes to its first offset: of files that follow each other one is open at a time.

    Args:
        pieces: in any order; they may overlap.
        read: the records of a piece, in order of offset, repeated offsets beside each other.
        where: the archive and the lane, for errors.

    Raises:
        ArchiveBroken: two different records have one offset.
    """
    waiting = sorted(pieces, key=lambda piece: (piece.first, piece.last, piece.file, piece.group), reverse=True)
    streams: list[_Stream] = []
    last: tuple[Record, str] | None = None
    while waiting or streams:
        while waiting and (not streams or waiting[-1].first <= min(each.offset for each in streams)):
            piece = waiting.pop()
            stream = _Stream(piece, read(piece))
            if stream.advance():
                streams.append(stream)
        if not streams:
            continue
        stream = min(streams, key=lambda each: each.offset)
        others = [each.offset for each in streams if each is not stream]
        if waiting:
            others.append(waiting[-1].first)
        # As far as this stream is alone, it is taken in one journal; at least one record, which may be a repeated one.
        records = stream.take(max(min(others), stream.offset + 1) if others else None)
        kept, last = _distinct(records, stream.piece.file, last, where)
        if kept:
            yield kept
        if not stream.advance():
            streams.remove(stream)


def in_chunks(batches: Iterable[list[Record]], wanted: OffsetRange) -> Iterator[Chunk]:
    """A range in chunks of one transaction each; the last covers all of the range, also where no record is left.

    Args:
        batches: records of the range in order, in lists of any length.
        wanted: the range.
    """
    chunk: list[Record] = []
    size = 0
    for batch in batches:
        for record in batch:
            if len(chunk) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
                yield Chunk(chunk, chunk[-1].offset + 1)
                chunk, size = [], 0
            chunk.append(record)
            size += len(record.key or b"") + len(record.value or b"")
    yield Chunk(chunk, wanted.next)


class _Stream:
    """A piece that is being read: its current list of records, and the position in it."""

    __slots__ = ("_at", "_batches", "_offsets", "_records", "offset", "piece")

    def __init__(self, piece: ArchivePiece, batches: Iterator[list[Record]]) -> None:
        self.piece, self._batches = piece, batches
        self._records: list[Record] = []
        self._offsets: list[int] = []
        self._at = 0
        self.offset = piece.first
        """Of the next record."""

    def advance(self) -> bool:
        """Step to the next record; whether there is one."""
        while self._at == len(self._records):
            following = next(self._batches, None)
            if following is None:
                return False
            self._records, self._at = following, 0
            self._offsets = [record.offset for record in following]
        self.offset = self._offsets[self._at]
        return True

    def take(self, below: int | None) -> list[Record]:
        """Take the records below an offset, as far as they are read; all of them without an offset."""
        end = len(self._records) if below is None else bisect_left(self._offsets, below, self._at)
        taken = self._records[self._at : end]
        self._at = end
        return taken


def _distinct(
    records: Sequence[Record], file: str, last: tuple[Record, str] | None, where: str
) -> tuple[list[Record], tuple[Record, str] | None]:
    """Records without those that repeat an offset, and the last one with its file."""
    kept = []
    for record in records:
        if last is not None and record.offset == last[0].offset:
            if record != last[0]:
                raise ArchiveBroken(
                    f"two different records have upstream offset {record.offset}: one in {last[1]}, one in {file}",
                    where=where,
                    hint="find the one that the source had (the other may be of another cluster, or of a topic "
                    "before it was created again), and take the other's file out of the folder",
                )
            continue
        kept.append(record)
        last = (record, file)
    return kept, last
