"""Runs of whole batches, proved by the batches that stand on a cluster: payload against payload, nothing is parsed.

A run's digest is over the batches as they were produced. The target keeps them so, unless it compressed or compacted
them since; and so does the source, if all of them were passed as they lay. Where batches differ, their records are
decoded and judged as those of any other run: without a digest of records, they are compared with the source's.

Pure but for reading through its port.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, groupby

from mirrorless.batch_records import records as records_of
from mirrorless.jobs.copy_task import BatchAt, BatchChunk, Chunk
from mirrorless.record_batch import RecordBatch, batch_digest
from mirrorless.verify.proof import Judged, cut, judge
from mirrorless.verify.windows import Window

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
    if run is not None and readable and _are_claimed(window, batches) and batch_digest(batches) == run.digest:
        return Judged(window=window, state="proved")
    first = max(window.first, log_start)
    records = [each for batch in batches for each in records_of(batch) if first <= each.offset < window.next]
    return judge(window, records, read=read, log_start=log_start, compacts=compacts)


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
