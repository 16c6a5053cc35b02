"""The slices of a lane: rows of whole runs, each proved alone, by any task.

    runs      | A | B | C | D | E | F |        each run has its own digest
    slices    |   0   |   1   |   2   |        a border lies between two runs of one generation
    wrong           x   x                      neighbours that are wrong are compared as one, so this row is
    rows            | B   C |                  left out of slices 0 and 1, and is proved as a slice of its own

All slices of a lane go by one survey: the log's bounds and the chain's end as they were read once. So the verdict on a
lane does not depend on where it was cut. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from mirrorless.chain.run import Run
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.verify.windows import Border, ChainEnd, LinkKey, TargetWindows

SLICE_BYTES: Final = 1_000_000_000
"""Of keys and values in one slice, about: runs are whole."""

LEAST_BYTES: Final = 64_000_000
"""A smaller slice is not worth its own requests."""


class VerifiedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A row of runs of one lane, and what is between them."""

    number: int = 0
    """In the order of the lane; of the rows at borders odd, of the others even."""
    begin: Border | None = None
    """The border to begin behind; None for the lane's beginning."""
    first: LinkKey | None = None
    """The first run, where those between `begin` and it are not of this slice."""
    upto: LinkKey | None = None
    """The last run; None for the lane's end, and what follows it."""
    end: int | None = None
    """Downstream: where it ends; None for the end of the readable log."""
    position: int | None = None
    """Upstream: behind its last run; None for the lane's position."""
    closed: bool = True
    """Whether wrong runs at its borders are its own, and not left to a row."""
    bytes: int = 0
    """Of keys and values, by its runs."""


WHOLE: Final = VerifiedSlice()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Runs at a slice's border that are to be compared together with those across it."""

    first: LinkKey | None
    """None where it begins with the slice."""
    upto: LinkKey | None
    """None where it ends with the lane."""
    end: int | None
    position: int | None
    whole: bool = False
    """Whether it is all of its slice."""


class SlicedLane(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a lane as they were read once, for all of its slices."""

    chain: ChainEnd
    log_start: int = 0
    """The target's first offset."""
    end: int = 0
    """Downstream: below which the target is judged."""
    log_end: int = 0
    """Downstream: the end of the readable part of the target."""
    lowest: dict[int, int] = {}
    """See `first_claims`."""
    notes: tuple[str, ...] = ()
    empty: bool = False
    """Whether nothing of the lane has been replicated."""
    slices: tuple[VerifiedSlice, ...] = (WHOLE,)

    def windows(self, begin: Border | None) -> TargetWindows:
        """The windows of the target from a border on."""
        if begin is None:
            return TargetWindows(start=self.log_start, lowest=self.lowest, at=self.log_start)
        return TargetWindows(start=self.log_start, lowest=self.lowest, at=begin.at, hole=begin.hole, begun=begin.begun)

    def reach(self, part: VerifiedSlice) -> OffsetRange:
        """The downstream offsets of a slice, in which contents are searched for; the first has what lies before it."""
        begin = 0 if part.begin is None else part.begin.at
        return OffsetRange(begin, self.log_end if part.end is None else part.end)


def cut_lane(
    runs: Iterable[tuple[Run | None, bool]], windows: TargetWindows, *, most: int
) -> tuple[VerifiedSlice, ...]:
    """Cut a lane at borders of runs.

    Args:
        runs: see `runs_of`; with each, whether it is to be verified.
        windows: of the target, from the lane's beginning.
        most: bytes of a slice: it ends with the first run that reaches this.

    Returns:
        one slice or more, in order; their numbers are even.
    """
    slices: list[VerifiedSlice] = []
    begin: Border | None = None
    border: Border | None = None
    size = 0
    for run, wanted in runs:
        # Behind the last run of a generation a reset may stand at that run's own position.
        if run is not None and border is not None and size >= most and run.generation == border.generation:
            slices.append(_slice(len(slices), begin, border, size))
            begin, size = border, 0
        for _ in windows.of(run if wanted else None):
            pass  # the state behind them is wanted
        if run is not None:
            size += run.bytes if wanted else 0
            border = Border(
                generation=run.generation,
                position=run.position,
                expected=(run.generation, run.next),
                at=windows.at,
                hole=windows.hole,
                begun=windows.begun,
            )
        # Links that are gone behind a border are met again by whoever begins there.
    slices.append(_slice(len(slices), begin, None, size))
    return tuple(slices) if len(slices) > 1 else (msgspec.structs.replace(WHOLE, bytes=size),)


def _slice(count: int, begin: Border | None, border: Border | None, size: int) -> VerifiedSlice:
    return VerifiedSlice(
        number=2 * count,
        begin=begin,
        upto=None if border is None else (border.generation, border.position),
        end=None if border is None else border.at,
        position=None if border is None else border.expected[1],
        closed=False,
        bytes=size,
    )


def slice_bytes(whole: int, slots: int) -> int:
    """The size of a slice: 1 GB, or less where cores would have nothing to do at the end.

    Args:
        whole: bytes of all lanes.
        slots: tasks at a time.
    """
    return min(SLICE_BYTES, max(LEAST_BYTES, whole // (4 * slots)))


def rows_to_close(
    slices: Iterable[VerifiedSlice], rows: Iterable[tuple[Row | None, Row | None]]
) -> Iterator[VerifiedSlice]:
    """The rows of wrong runs at borders, as slices of their own.

    Args:
        slices: of a lane, in order.
        rows: which of its runs each slice has left out, at its beginning and at its end.
    """
    under_way: VerifiedSlice | None = None
    for each, (before, after) in zip(slices, rows, strict=True):
        if before is not None:
            start = under_way or VerifiedSlice(number=each.number - 1, begin=each.begin)
            under_way = msgspec.structs.replace(start, upto=before.upto, end=before.end, position=before.position)
        if under_way is not None and not (before is not None and before.whole):
            yield under_way
            under_way = None
        if after is not None:
            under_way = VerifiedSlice(
                number=each.number + 1,
                begin=each.begin,
                first=after.first,
                upto=after.upto,
                end=after.end,
                position=after.position,
            )
    if under_way is not None:
        yield under_way
