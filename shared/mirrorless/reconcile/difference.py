"""The records that only the target has: those in the remote topic that no run of the chain claims.

    downstream   0 .. 9 | 10 | 11 .. 19 | 20 | 21 .. 24 | 25 ..... 99
                  run 1    m     run 2     m   late records   new records
                 └─────── claimed by the chain ──┘              the tail

Between two runs another producer may have written: see `mirrorless.chain.claims`. What follows the last run is new:
producers have moved to the target.

Pure: runs come in, ranges of downstream offsets come out. A chain may have millions of runs: they are held one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from mirrorless.chain.claims import ClaimWalk
from mirrorless.chain.lane import Lane
from mirrorless.chain.run import Run
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.ports.stores import Chains, links_across
from mirrorless.records.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The offsets of the target's log that a lane's chain claims, over all generations."""

    holes: tuple[OffsetRange, ...] = ()
    """Downstream offsets between runs, or inside of one, that no span claims and that may hold records."""
    last: Run | None = None
    """The newest run of a generation, where it has records."""
    end: int = 0
    """The downstream offset after the last record in the chain."""
    records: int = 0
    bytes: int = 0
    """Key and value bytes of all runs."""


def claims_of(runs: Iterable[Run], *, since: int = 0, generation: int = 0) -> Claims:
    """Add up the committed runs of a lane, in the order of the chain.

    Args:
        runs: committed, of all generations.
        since: holes below this downstream offset are left out.
        generation: whose newest run is kept.
    """
    holes: list[OffsetRange] = []
    # Records before the first one in the chain were there before the flow, or their links have expired.
    claimed = ClaimWalk()
    records = size = 0
    last = None
    for run in runs:
        records, size = records + run.records, size + run.bytes
        holes += [
            OffsetRange(max(first, since), following) for first, following in claimed.room(run) if following > since
        ]
        if run.spans:
            last = run if run.generation == generation else last
    return Claims(holes=tuple(holes), end=claimed.end or 0, records=records, bytes=size, last=last)


def unclaimed(claims: Claims, log: OffsetRange, *, since: int) -> tuple[tuple[OffsetRange, ...], OffsetRange | None]:
    """Find the ranges that may hold records of the target alone.

    Args:
        claims: of the lane's chain.
        log: the remote partition's first offset and its stable end.
        since: the back lane's position: records below this downstream offset were brought back before.

    Returns:
        the holes, and the tail behind the chain's end; None when nothing is there.
    """
    first = max(since, log.first)
    holes = tuple(
        OffsetRange(max(hole.first, first), min(hole.next, log.next))
        for hole in claims.holes
        if max(hole.first, first) < min(hole.next, log.next)
    )
    tail = OffsetRange(max(first, claims.end), log.next)
    return holes, tail if tail.first < tail.next else None


def committed_runs(chains: Chains, lane: Lane) -> Iterator[Run]:
    """Every committed run of a lane that the map still has, in order, across resets.

    Raises:
        Retriable: the store does not answer.
    """
    links = links_across(chains, lane, chains.heads([lane])[lane].generation)
    return (link for link in links if isinstance(link, Run) and link.state == "committed")


class Stretch(msgspec.Struct, frozen=True):
    """Records in one range, from the first to the last: offsets [first, next)."""

    first: int
    next: int
    records: int
    bytes: int
    """Of keys and values."""


class Seen(msgspec.Struct, frozen=True):
    """The records in some ranges: a stretch for each range that has any."""

    stretches: tuple[Stretch, ...] = ()

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges, each cut to its records."""
        return tuple(OffsetRange(each.first, each.next) for each in self.stretches)

    @property
    def records(self) -> int:
        """All of them."""
        return sum(each.records for each in self.stretches)

    @property
    def bytes(self) -> int:
        """Of their keys and values."""
        return sum(each.bytes for each in self.stretches)


def apart(claimed: Iterable[OffsetRange], within: OffsetRange) -> Iterator[OffsetRange]:
    """The parts of a range that are not claimed. Args: claimed: growing; read once, as far as needed."""
    at = within.first
    for each in claimed:
        if at < min(each.first, within.next):
            yield OffsetRange(at, min(each.first, within.next))
        at = max(at, each.next)
        if at >= within.next:
            return
    if at < within.next:
        yield OffsetRange(at, within.next)


def read_through(ranges: Iterable[OffsetRange], *, near: int) -> Iterator[OffsetRange]:
    """Ranges to read: growing ones that are at most `near` offsets apart in one go, for each costs a round trip."""
    at: OffsetRange | None = None
    for each in ranges:
        if at is not None and each.first - at.next <= near:
            at = OffsetRange(at.first, each.next)
            continue
        if at is not None:
            yield at
        at = each
    if at is not None:
        yield at


class RangesLook:
    """A look at the records of some ranges, which are added up and not kept.

    Args:
        ranges: growing and apart; read once, as far as the records go.
        before: what an earlier look at the same ranges has seen: its last stretch may go on.
    """

    def __init__(self, ranges: Iterable[OffsetRange], before: Seen | None = None) -> None:
        self._ranges = iter(ranges)
        self._range = next(self._ranges, None)
        self._stretches = list(before.stretches) if before is not None else []

    def add(self, records: Iterable[Record]) -> None:
        """Add visible records, growing; others than those of the ranges may be among them."""
        within, found = self._range, self._stretches
        for record in records:
            offset = record.offset
            while within is not None and within.next <= offset:
                within = next(self._ranges, None)
            if within is None:
                break
            if offset < within.first:
                continue
            size = len(record.key or b"") + len(record.value or b"")
            if found and found[-1].first >= within.first:
                last = found.pop()
                found.append(Stretch(last.first, offset + 1, last.records + 1, last.bytes + size))
            else:
                found.append(Stretch(offset, offset + 1, 1, size))
        self._range = within

    def seen(self) -> Seen:
        """What was seen until now."""
        return Seen(tuple(self._stretches))


def seen_in(ranges: Iterable[OffsetRange], records: Iterable[Record]) -> Seen:
    """Add up the records of some ranges; see `RangesLook`."""
    look = RangesLook(ranges)
    look.add(records)
    return look.seen()


def united(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The same offsets as ranges that grow and are apart."""
    found: list[OffsetRange] = []
    for each in sorted(ranges, key=lambda each: each.first):
        if each.first >= each.next:
            continue
        if found and each.first <= found[-1].next:
            found[-1] = OffsetRange(found[-1].first, max(found[-1].next, each.next))
        else:
            found.append(each)
    return tuple(found)


def without(ranges: Iterable[OffsetRange], others: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The offsets of some ranges that are not in others; both grow and are apart."""
    ends = [each.next for each in others]
    return tuple(
        part
        for each in ranges
        for part in apart((others[at] for at in range(bisect_right(ends, each.first), len(others))), each)
    )


def within(ranges: Sequence[OffsetRange], offsets: Iterable[int]) -> list[bool]:
    """Whether each of some growing offsets is in one of some ranges, which grow and are apart."""
    found, which = [], 0
    for offset in offsets:
        while which < len(ranges) and ranges[which].next <= offset:
            which += 1
        found.append(which < len(ranges) and ranges[which].first <= offset)
    return found
