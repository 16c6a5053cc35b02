"""The proof that a run's records stand on the target, byte for byte: by the digest, without the source.

Pure: windows and records come in, a judgement of each window comes out.

Runs of whole batches, proved by the batches that stand on a cluster: payload against payload, nothing is parsed.

A run's digest is over the batches as they were produced, but for the times that a broker stamps on them, which are in
the header. The target keeps them so, unless it compressed or compacted them since; and so does the source, if all of
them were passed as they lay. Where batches differ, their records are decoded and judged as those of any other run:
without a digest of records, they are compared with the source's.

Pure but for reading through its port.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import Literal, Protocol, TypeVar

from mirrorless.chain.run import Run
from mirrorless.jobs.copy_task import BatchAt, BatchChunk, Chunk
from mirrorless.protocol.digest import digest
from mirrorless.records.batch_records import records as records_of
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch, batch_digest
from mirrorless.verify.windows import Window

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
unread      the log did not show all of the window
"""

_offset = attrgetter("offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judgement of a window."""

    window: Window
    state: ProofState
    records: Sequence[Record] = ()
    """The claimed records in order, where a comparison may need them."""
    absent: Sequence[int] = ()
    """Claimed offsets without a record."""
    unclaimed: Sequence[Record] = ()
    """Records that no run claims."""
    unknown: int = 0
    """Records of links that have expired."""


class _At(Protocol):
    """What stands at an offset."""

    @property
    def offset(self) -> int: ...


_Content = TypeVar("_Content", bound=_At)


class _Chunk(Protocol[_Content]):
    """The content of a log from one offset to another."""

    @property
    def records(self) -> list[_Content]: ...

    @property
    def covered(self) -> int: ...


def cut(windows: Iterable[Window], chunks: Iterable[_Chunk[_Content]]) -> Iterator[tuple[Window, list[_Content], bool]]:
    """Each window with what is in it, and whether all of it was read. Windows and chunks come in order."""
    coming = iter(chunks)
    held: list[_Content] = []
    taken, covered = 0, -1
    for window in windows:
        while covered < window.next:
            chunk = next(coming, None)
            if chunk is None:
                break
            if taken:
                del held[:taken]
                taken = 0
            held += chunk.records
            covered = chunk.covered
        end = bisect_left(held, window.next, taken, key=_offset)
        begin = bisect_left(held, window.first, taken, end, key=_offset)
        yield window, held[begin:end], covered >= window.next
        taken = end


def judge(window: Window, records: Sequence[Record], *, read: bool, log_start: int, compacts: bool) -> Judged:
    """Judge one window.

    Args:
        window: which offsets.
        records: what readers see there.
        read: whether all of the window was read.
        log_start: where the log began when it was read.
        compacts: whether records of this topic may be compacted away.
    """
    run = window.run
    if run is None:
        state: ProofState = "nothing" if read else "unread"
        if window.hole:
            return Judged(window=window, state=state, unknown=len(records))
        return Judged(window=window, state=state, unclaimed=records)
    unreadable: ProofState | None = None
    if window.superseded:
        unreadable = "superseded"
    elif window.claims and window.claims[-1][0] + window.claims[-1][1] <= log_start:
        unreadable = "expired"
    elif run.state == "prepared":
        unreadable = "in_doubt"
    if unreadable is not None:
        claimed = set(window.claimed()) if records else set()
        unclaimed = [record for record in records if record.offset not in claimed]
        return Judged(window=window, state=unreadable, unclaimed=unclaimed)
    if not _whole(window, records):
        return _looked_into(window, run, records, read=read, log_start=log_start, compacts=compacts)
    holds = digest(records) == run.digest
    return Judged(window=window, state="proved" if holds else "wrong", records=() if holds else records)


def _whole(window: Window, records: Sequence[Record]) -> bool:
    """Whether a window has exactly the claimed records: offsets grow, so both ends of a row suffice."""
    if not window.claims or not records:
        return False
    if len(window.claims) == 1:
        first, length = window.claims[0]
        return len(records) == length and records[0].offset == first and records[-1].offset == first + length - 1
    return [record.offset for record in records] == window.claimed()


def _looked_into(
    window: Window, run: Run, records: Sequence[Record], *, read: bool, log_start: int, compacts: bool
) -> Judged:
    """Judge a window that has more than the run claims, or less."""
    claimed = window.claimed()
    wanted = set(claimed)
    present = [record for record in records if record.offset in wanted]
    unclaimed = [record for record in records if record.offset not in wanted]
    unknown = sum(record.offset < claimed[0] for record in unclaimed) if window.hole and claimed else 0
    there = {record.offset for record in present}
    absent = [offset for offset in claimed if offset not in there]
    state: ProofState
    if not claimed:
        state = "nothing"
    elif not read:
        state = "unread"
    elif absent:
        state = "cut" if absent[0] < log_start else "incomplete"
        absent = [offset for offset in absent if offset >= log_start]
    else:
        state = "proved" if digest(present) == run.digest else "wrong"
    thinned = compacts and state == "incomplete"
    return Judged(
        window=window,
        state=state,
        records=() if thinned else present,
        absent=absent,
        unclaimed=unclaimed[unknown:],
        unknown=unknown,
    )


ReadRecords = Callable[[int], Generator[Chunk]]
"""Reads from an offset on."""

ReadBatches = Callable[[int], Generator[BatchChunk]]


def judged_windows(
    windows: Iterable[Window],
    by_batches: Callable[[Window], bool],
    *,
    begin: int,
    records: ReadRecords,
    batches: ReadBatches,
    log_start: Callable[[], int],
    compacts: bool,
) -> Iterator[Judged]:
    """Every window, judged. Neighbours of a kind are read as one: by batches, or by records.

    Args:
        windows: in order.
        by_batches: whether the window of a run is to be proved by its batches.
        begin: the offset to begin reading at.
        records: a reader.
        batches: the other one.
        log_start: where the log begins, as last read.
        compacts: whether records of this topic may be compacted away.
    """
    whole = False

    def kind(window: Window) -> bool:
        nonlocal whole
        if window.run is not None:
            whole = by_batches(window)
        return whole  # what is between runs, and behind the last one, is read with the run before

    for reads_batches, group in groupby(windows, key=kind):
        first = next(group)
        at, some = max(begin, first.first), chain([first], group)  # noqa: B031  once, behind its first
        if reads_batches:
            with closing(batches(at)) as found:
                for window, seen, read in cut(some, found):
                    yield judge_batches(window, seen, read=read, log_start=log_start(), compacts=compacts)
        else:
            with closing(records(at)) as chunks:  # the reader stays warm for the next
                for window, held, read in cut(some, chunks):
                    yield judge(window, held, read=read, log_start=log_start(), compacts=compacts)


def judge_batches(window: Window, seen: Sequence[BatchAt], *, read: bool, log_start: int, compacts: bool) -> Judged:
    """Judge the window of a run of whole batches; see `judge`."""
    run, batches = window.run, [each.batch for each in seen]
    readable = run is not None and run.state == "committed" and not window.superseded
    as_claimed = run is not None and readable and _are_claimed(window, batches) and _have_its_times(run, batches)
    if run is not None and as_claimed and batch_digest(batches) == run.digest:
        return Judged(window=window, state="proved")
    first = max(window.first, log_start)
    records = [each for batch in batches for each in records_of(batch) if first <= each.offset < window.next]
    return judge(window, records, read=read, log_start=log_start, compacts=compacts)


def _have_its_times(run: Run, batches: Sequence[RecordBatch]) -> bool:
    """Whether readers get the times that were produced.

    A broker that stamps its own leaves the records as they are, and says in the header that theirs do not count.
    """
    stamped = any(batch.has_log_append_time for batch in batches)
    return not stamped and max(batch.max_timestamp for batch in batches) == run.newest_timestamp


def _are_claimed(window: Window, batches: Sequence[RecordBatch]) -> bool:
    """Whether the batches hold the claimed offsets and no others."""
    if any(batch.records_count != batch.last_offset_delta + 1 for batch in batches):
        return False
    return _rows((batch.base_offset, batch.records_count) for batch in batches) == _rows(window.claims)


def _rows(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    rows: list[tuple[int, int]] = []
    for first, length in parts:
        if rows and rows[-1][0] + rows[-1][1] == first:
            rows[-1] = (rows[-1][0], rows[-1][1] + length)
        else:
            rows.append((first, length))
    return rows
