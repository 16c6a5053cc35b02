"""The walk: the ranges of runs beside the records that stand there, each judged alone by its run's digest.

A run's digest is over its records, or, where whole batches were copied, over the batches as they were produced, but for
the times that a broker stamps on them, which are in the header. The target keeps batches so, unless it compressed or
compacted them since; and so does the source, if all of them were passed as they lay. Such a run is proved payload
against payload, nothing is parsed; where batches differ, their records are decoded and judged as those of any other
run: without a digest of records, they are compared with the source's.

Pure but for reading through its ports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, Literal

from mirrorless.chain.run import Run
from mirrorless.errors import RecordsGone
from mirrorless.jobs.copy_task import BatchChunk, BatchLog, Chunk, LaneLog, OffsetRange
from mirrorless.protocol.digest import digest
from mirrorless.records.batch_records import records as records_of
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch, batch_digest
from mirrorless.verify.run_ranges import RunRange, of_batches

READ_SECONDS: Final = 60.0
"""For a cluster's answer."""

ProofState = Literal["proved", "wrong", "incomplete", "expired", "cut", "in_doubt", "superseded", "nothing", "unread"]
"""
proved      every record is there, and the digest holds
wrong       every record is there, and the digest does not hold
incomplete  a record is not there
expired     the log begins above all of them
cut         the log begins above some of them
in_doubt    the run is only prepared
superseded  a newer chain claims these offsets: the topic is another one now
nothing     the run has no record, or there is no run
unread      the log did not show all of the range
"""

_offset = attrgetter("offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judgement of a range."""

    run_range: RunRange
    state: ProofState
    records: Sequence[Record] = ()
    """The claimed records in order, where a comparison may need them."""
    absent: Sequence[int] = ()
    """Claimed offsets without a record."""
    unclaimed: Sequence[Record] = ()
    """Records that no run claims."""
    unknown: int = 0
    """Records of links that have expired."""


def cut(
    run_ranges: Iterable[RunRange], chunks: Iterable[Chunk | BatchChunk], at: int
) -> Iterator[tuple[RunRange, list[Any], bool]]:
    """Each range with what is in it, and whether all of it was read.

    Args:
        run_ranges: in order.
        chunks: in order.
        at: where the first chunk begins; what lies before it is not there.
    """
    coming = iter(chunks)
    held: list[Any] = []
    taken, covered = 0, at
    for run_range in run_ranges:
        while covered < run_range.next:
            chunk = next(coming, None)
            if chunk is None:
                break
            if taken:
                del held[:taken]
                taken = 0
            held += chunk.records
            covered = chunk.covered
        end = bisect_left(held, run_range.next, taken, key=_offset)
        begin = bisect_left(held, run_range.first, taken, end, key=_offset)
        yield run_range, held[begin:end], covered >= run_range.next
        taken = end


CountRead = Callable[[Any, int], None]
"""Called with what was read, and the number of offsets that it covers."""

SeenAs = Callable[["Run | None", list[Record]], list[Record]]
"""The records in a run's range, or in one of none, as they are to be judged."""


@dataclass(slots=True, kw_only=True)
class WalkedSide:
    """A partition on one of the two clusters, as it is read beside the runs of a lane."""

    log: LaneLog
    topic: str
    partition: int
    batches: BatchLog | None = None
    """The same by whole batches; None: runs of batches are judged by records."""
    compacts: bool = False
    """Whether records of this topic may be compacted away."""
    by_batches: Callable[[Run], bool] = of_batches
    """Whether a run is to be judged by its batches, where they can be read."""
    seen: SeenAs | None = None
    """The source's records as the flow copies them, see `mirrorless.verify.source_copies`; where flows mark their
    copies, the target's without its own."""
    start: int = 0
    """Where the log begins, as last read."""
    end: int | None = None
    """Of the readable log; what is wanted behind it is not there."""

    def bounds(self) -> OffsetRange:
        """See `LaneLog.bounds`."""
        return self.log.bounds(self.topic, self.partition, patience)

    def walk(self, run_ranges: Iterable[RunRange], wanted: OffsetRange, count: CountRead) -> Iterator[Judged]:
        """Every range, judged. Neighbours of a kind are read as one: by batches, or by records.

        Args:
            run_ranges: in order.
            wanted: the offsets to read.
            count: called with all that is read.

        Raises:
            Retriable: the cluster does not answer.
        """
        whole = False

        def kind(run_range: RunRange) -> bool:
            nonlocal whole
            if run_range.run is not None:
                whole = self.batches is not None and self.by_batches(run_range.run)
            return whole  # what is between runs, and behind the last one, is read with the run before

        for reads_batches, group in groupby(run_ranges, key=kind):
            first = next(group)
            at, some = max(wanted.first, first.first), chain([first], group)  # noqa: B031  once, behind its first
            content = self.content(OffsetRange(at, wanted.next), count, batches=reads_batches)
            with closing(content):  # the reader stays warm for the next
                for run_range, held, complete in cut(some, content, at):
                    if reads_batches:
                        batches = [each.batch for each in held]
                        yield judge_batches(
                            run_range, batches, read=complete, log_start=self.start, compacts=self.compacts
                        )
                    else:
                        records = held if self.seen is None else self.seen(run_range.run, held)
                        yield judge(run_range, records, read=complete, log_start=self.start, compacts=self.compacts)

    def read(self, wanted: OffsetRange) -> Iterator[Chunk]:
        """See `LaneLog.read`."""
        return self.log.read(self.topic, self.partition, wanted, patience)

    def records(self, run_ranges: Sequence[RunRange]) -> list[Record]:
        """The records that the runs of some ranges claim. Args: run_ranges: in order, each with claims."""
        first, (last, length) = run_ranges[0].claims[0][0], run_ranges[-1].claims[-1]
        found: list[Record] = []
        for run_range, held, _ in cut(run_ranges, self.read(OffsetRange(first, last + length)), first):
            claimed = set(run_range.claimed())
            records = held if self.seen is None else self.seen(run_range.run, held)
            found += [each for each in records if each.offset in claimed]
        return found

    def content(self, wanted: OffsetRange, count: CountRead, *, batches: bool = False) -> Generator[Any]:
        """What stands in a range: batches, or records. What retention deletes meanwhile is expired: reading goes on.

        Args:
            wanted: the range.
            count: called with all that is read.
            batches: whether whole batches are read.

        Raises:
            Retriable: the cluster does not answer.
        """
        empty = BatchChunk if batches else Chunk
        at, end = wanted.first, wanted.next if self.end is None else min(wanted.next, self.end)
        while at < end:
            try:
                for chunk in self._read(OffsetRange(at, end), batches=batches):
                    count(chunk, chunk.covered - at)
                    at = chunk.covered
                    yield chunk
            except RecordsGone:
                start = self.bounds().first
                if start <= at:
                    raise
                self.start = at = start
                yield empty([], min(start, end))
            else:
                break
        if end < wanted.next:
            yield empty([], wanted.next)  # the log ends before the map

    def _read(self, wanted: OffsetRange, *, batches: bool) -> Iterator[Chunk | BatchChunk]:
        if not batches:
            return self.log.read(self.topic, self.partition, wanted, patience)
        assert self.batches is not None  # noqa: S101 -- else nothing is read by batches
        return self.batches.read(self.topic, self.partition, wanted, patience)


def judge(
    run_range: RunRange, records: Sequence[Record], *, read: bool = True, log_start: int = 0, compacts: bool = False
) -> Judged:
    """Judge one range.

    Args:
        run_range: which offsets.
        records: what readers see there.
        read: whether all of the range was read.
        log_start: where the log began when it was read.
        compacts: whether records of this topic may be compacted away.
    """
    run, state = run_range.run, _unreadable(run_range, read=read, log_start=log_start)
    if state is None and run is not None and _has_exactly_the_claimed(run_range, records):
        holds = digest(records) == run.digest
        return Judged(run_range=run_range, state="proved" if holds else "wrong", records=() if holds else records)
    claimed = run_range.claimed()
    wanted = set(claimed)
    unclaimed = [record for record in records if record.offset not in wanted]
    unknown = sum(not claimed or record.offset < claimed[0] for record in unclaimed) if run_range.hole else 0
    if state is not None or run is None:
        return Judged(run_range=run_range, state=state or "nothing", unclaimed=unclaimed[unknown:], unknown=unknown)
    present = [record for record in records if record.offset in wanted]
    there = {record.offset for record in present}
    absent = [offset for offset in claimed if offset not in there]
    if absent:
        state = "cut" if absent[0] < log_start else "incomplete"
    else:
        state = "proved" if digest(present) == run.digest else "wrong"
    return Judged(
        run_range=run_range,
        state=state,
        records=() if compacts and state == "incomplete" else present,
        absent=[offset for offset in absent if offset >= log_start],
        unclaimed=unclaimed[unknown:],
        unknown=unknown,
    )


def _unreadable(run_range: RunRange, *, read: bool, log_start: int) -> ProofState | None:
    """Why a range's records cannot be judged; None where they can."""
    if run_range.superseded:
        return "superseded"
    if run_range.claims and run_range.claims[-1][0] + run_range.claims[-1][1] <= log_start:
        return "expired"
    if run_range.run is not None and run_range.run.state == "prepared":
        return "in_doubt"
    if not run_range.claims and (read or run_range.run is not None):
        return "nothing"
    return None if read else "unread"


def _has_exactly_the_claimed(run_range: RunRange, records: Sequence[Record]) -> bool:
    """Whether a range has the claimed records and no others: offsets grow, so both ends of a row suffice."""
    if not records:
        return False
    if len(run_range.claims) == 1:
        first, length = run_range.claims[0]
        return len(records) == length and records[0].offset == first and records[-1].offset == first + length - 1
    return [record.offset for record in records] == run_range.claimed()


def judge_batches(
    run_range: RunRange,
    batches: Sequence[RecordBatch],
    *,
    read: bool = True,
    log_start: int = 0,
    compacts: bool = False,
) -> Judged:
    """Judge the range of a run of whole batches; see `judge`."""
    run = run_range.run
    readable = run is not None and run.state == "committed" and not run_range.superseded
    as_claimed = run is not None and readable and _are_claimed(run_range, batches) and _have_its_times(run, batches)
    if run is not None and as_claimed and batch_digest(batches) == run.digest:
        return Judged(run_range=run_range, state="proved")
    first = max(run_range.first, log_start)
    records = [each for batch in batches for each in records_of(batch) if first <= each.offset < run_range.next]
    return judge(run_range, records, read=read, log_start=log_start, compacts=compacts)


def _have_its_times(run: Run, batches: Sequence[RecordBatch]) -> bool:
    """Whether readers get the times that were produced.

    A broker that stamps its own leaves the records as they are, and says in the header that theirs do not count.
    """
    stamped = any(batch.has_log_append_time for batch in batches)
    return not stamped and max(batch.max_timestamp for batch in batches) == run.newest_timestamp


def _are_claimed(run_range: RunRange, batches: Sequence[RecordBatch]) -> bool:
    """Whether the batches hold the claimed offsets and no others."""
    if any(batch.records_count != batch.last_offset_delta + 1 for batch in batches):
        return False
    return in_rows((batch.base_offset, batch.records_count) for batch in batches) == in_rows(run_range.claims)


def in_rows(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Parts (first offset, length) in a row, as one."""
    rows: list[tuple[int, int]] = []
    for first, length in parts:
        if rows and rows[-1][0] + rows[-1][1] == first:
            rows[-1] = (rows[-1][0], rows[-1][1] + length)
        else:
            rows.append((first, length))
    return rows


def patience() -> float:
    """The deadline of each answer."""
    return READ_SECONDS
