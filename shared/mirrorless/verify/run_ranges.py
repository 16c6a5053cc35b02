"""The ranges of a lane: the offsets where its records should stand, one range for each run, on either side.

    runs         |   A    |  B  | expired |   C   |
    downstream   0 1 2 3 m 5 6 m 8 9 ...   20 21 m| 23 24
                 |   A    |  B   |    hole + C    |  tail           m: a commit marker, no record

A range reaches from the end of the one before it to its run's last record. So each offset is in one range, and a
record in a range is claimed by its run or by none. Where links have expired the run of a record is unknown: such a
range begins with a hole. Behind the last run is the tail, which should be empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Reset, Run
from mirrorless.jobs.request import Bound
from mirrorless.lanes.taken_over import was_taken_over
from mirrorless.ports.stores import Chains, links_across, links_after

PIECE: Final = 20_000
"""Offsets of one range where no run is: after a failover millions of records may stand there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRange:
    """Offsets [first, next) of one side."""

    first: int
    next: int
    run: Run | None
    """None for the tail, and for long stretches between two runs."""
    claims: tuple[tuple[int, int], ...] = ()
    """(first offset, length) of each row of records that the run claims here."""
    hole: bool = False
    """Whether records before the first claim, or all without one, may have been of links that are gone."""
    superseded: bool = False
    """Whether a newer chain claims the same offsets, so that this one is of a topic that no longer exists."""

    def claimed(self) -> list[int]:
        """Every offset that is claimed."""
        return list(chain.from_iterable(range(first, first + length) for first, length in self.claims))

    @classmethod
    def of_copies(cls, run: Run) -> RunRange:
        """The range of a run alone on the target: from its first record to its last."""
        claims = tuple((span.downstream, span.length) for span in run.spans)
        return cls(first=claims[0][0], next=claims[-1][0] + claims[-1][1], run=run, claims=claims)

    @classmethod
    def of_originals(cls, run: Run) -> RunRange:
        """The range of a run on the source: what it covers, gaps and all."""
        claims = tuple((span.upstream, span.length) for span in run.spans)
        return cls(first=run.position, next=run.next, run=run, claims=claims)


LinkKey = tuple[int, int]
"""The generation and the position of a run: its place in the lane's chain."""


def key_of(run: Run) -> LinkKey:
    """The key of a run."""
    return run.generation, run.position


class ChainEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a lane's chain as it was read: what is added later is not verified."""

    generation: int
    position: int
    """See `Head`."""
    last: int
    """The position of the newest link of this generation; -1 where it has none."""
    expired: bool = False
    """See `Head`."""

    @classmethod
    def of(cls, head: Head) -> ChainEnd:
        """The end at a head."""
        last = head.run.position if head.run is not None else -1
        if head.run is None and head.expired:
            last = head.position  # its newest run has gone, those before it may not have
        return cls(generation=head.generation, position=head.position, last=last, expired=head.expired)


class Border(msgspec.Struct, frozen=True, kw_only=True):
    """A place between two runs of one generation, with all that the ranges behind it depend on."""

    generation: int
    position: int
    """Of the run before it."""
    expected: LinkKey
    """The key of the next link, where none has expired."""
    at: int
    """Where the next range begins, downstream."""
    hole: bool = False
    """See `TargetRanges`."""


def of_batches(run: Run) -> bool:
    """Whether a run was copied by whole batches."""
    return run.digest_of == "batches"


def chosen(run: Run, start: Bound, end: Bound, *, newest: int) -> bool:
    """Whether a run reaches into the requested part of a lane. Runs are proved whole, so the part grows to their ends.

    Args:
        run: of any generation.
        start: inclusive.
        end: exclusive.
        newest: the lane's generation; offsets speak of that one only.
    """
    if "offset" in (start.kind, end.kind) and run.generation != newest:
        return False
    if start.kind == "timestamp" and run.newest_timestamp < start.value:
        return False
    if end.kind == "timestamp" and not 0 <= run.oldest_timestamp < end.value:
        return False
    return not (
        (start.kind == "offset" and run.next <= start.value) or (end.kind == "offset" and run.position >= end.value)
    )


def runs_of(
    chains: Chains,
    lane: Lane,
    end: ChainEnd,
    *,
    since: int = 0,
    begin: Border | None = None,
    upto: LinkKey | None = None,
) -> Iterator[Run | None]:
    """Every run of a lane in order, generation by generation, up to the end as it was read.

    A None stands where links have expired, at the beginning or between two runs, and where a lane was taken over from
    MirrorMaker: no run has what that copied.

    Args:
        chains: the store.
        lane: whose.
        end: read before; what is added meanwhile does not count.
        since: the generation to begin with.
        begin: the border to begin behind; None for the beginning of the chain.
        upto: the last run; None for the end.
    """
    expected, behind = (0, 0), -1
    if begin is not None:
        expected, behind = begin.expected, begin.position if begin.generation >= since else -1
        since = max(since, begin.generation)
    for link in links_across(chains, lane, end.generation, since=since, behind=behind):
        if link.generation == end.generation and link.position > end.last:
            return
        place = link.generation, link.position
        # A reset over a run in doubt that was confirmed later has that run's position.
        if place != expected and not (isinstance(link, Reset) and place < expected):
            yield None
        if isinstance(link, Run):
            expected = (link.generation, link.next)
            yield link
            if place == upto:
                return
        else:
            expected = (link.to_generation, link.next)
            if was_taken_over(link):
                yield None
    if end.expired:
        yield None  # what was replicated last is not known


def first_claims(chains: Chains, lane: Lane, newest: int) -> dict[int, int]:
    """By generation: the lowest downstream offset that it or a later one claims; none where none claims any."""
    found: dict[int, int] = {}
    lowest: int | None = None
    for generation in range(newest, -1, -1):
        runs = (link for link in links_after(chains, lane, generation, -1) if isinstance(link, Run) and link.spans)
        first = next(runs, None)
        if first is not None:
            lowest = first.spans[0].downstream if lowest is None else min(lowest, first.spans[0].downstream)
        if lowest is not None:
            found[generation] = lowest
    return found


@dataclass(slots=True, kw_only=True)
class TargetRanges:
    """The ranges of downstream offsets, run by run."""

    start: int
    """Where the target's log begins."""
    lowest: Mapping[int, int]
    """See `first_claims`."""
    at: int
    """Where the next range begins."""
    hole: bool = False
    """Whether links before the next run are gone, or not to be looked at."""
    begun: bool = False
    """Whether a range was met that has to be read: what lies before that is expired, or not looked at."""

    def of(self, run: Run | None) -> Iterator[RunRange]:
        """The ranges of the next run. Args: run: None for links that are gone, or not to be looked at."""
        if run is None:
            self.hole = True
            return
        claims = tuple((span.downstream, span.length) for span in run.spans)
        if not claims:
            yield RunRange(first=self.at, next=self.at, run=run)
            return
        first, following = claims[0][0], claims[-1][0] + claims[-1][1]
        later = self.lowest.get(run.generation + 1)
        # An earlier run may lie below the log's start; a run that lies below an earlier run's end contradicts it.
        if (later is not None and following > later) or (first < self.at and self.at > self.start):
            yield RunRange(first=self.at, next=self.at, run=run, claims=claims, superseded=True)
            return
        if self.hole and not self.begun:
            self.at, self.hole = max(self.at, first), False
        self.begun = self.begun or following > self.start
        for piece in _pieces(self.at, first - PIECE, hole=self.hole):
            self.at = piece.next
            yield piece
        run_range = RunRange(first=min(self.at, following), next=following, run=run, claims=claims, hole=self.hole)
        self.at, self.hole = max(self.at, following), False
        yield run_range

    def tail(self, end: int) -> Iterator[RunRange]:
        """What follows the last run. Args: end: below which the target is read."""
        if not self.hole:
            yield from _pieces(self.at, end, hole=False)


def _pieces(first: int, following: int, *, hole: bool) -> Iterator[RunRange]:
    """Ranges without a run."""
    for at in range(first, following, PIECE):
        yield RunRange(first=at, next=min(at + PIECE, following), run=None, hole=hole)
