"""The records that only the target has: those in the remote topic that no run of the chain claims.

    downstream   0 .. 9 | 10 | 11 .. 19 | 20 | 21 .. 24 | 25 ..... 99
                  run 1    m     run 2     m   late records   new records
                 └─────── claimed by the chain ──┘              the tail

A run claims the downstream offsets of its spans. A commit leaves a marker right behind a run's last record, so a hole
of exactly one offset there has no record; any other hole may hold aborted attempts, or records that another producer
wrote between two runs. What follows the last run is new: producers have moved to the target.

Pure: runs come in, ranges of downstream offsets come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.lane import Lane
from mirrorless.ports.stores import Chains
from mirrorless.run import Reset, Run

PAGE = 500
"""Links of one read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The offsets of the target's log that a lane's chain claims, over all generations."""

    holes: tuple[OffsetRange, ...] = ()
    """Downstream offsets between runs, or inside of one, that no span claims and that may hold records."""
    end: int = 0
    """The downstream offset after the last record in the chain."""
    records: int = 0
    bytes: int = 0
    """Key and value bytes of all runs."""


def claims_of(runs: Iterable[Run], *, markers: bool) -> Claims:
    """Add up the committed runs of a lane, in the order of the chain.

    Args:
        runs: committed, of all generations.
        markers: whether each run was written in a transaction, and so has a marker behind it.
    """
    holes: list[OffsetRange] = []
    at: int | None = None
    behind_a_run = False
    records = size = 0
    for run in runs:
        records, size = records + run.records, size + run.bytes
        for span in run.spans:
            # Records before the first one in the chain were there before the flow, or their links have expired.
            if at is not None and span.downstream > at:
                marker = markers and behind_a_run and span.downstream == at + 1
                if not marker:
                    holes.append(OffsetRange(at, span.downstream))
            at = max(at or 0, span.downstream + span.length)
            behind_a_run = False
        behind_a_run = bool(run.spans) or behind_a_run
    return Claims(holes=tuple(holes), end=at or 0, records=records, bytes=size)


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


def runs_of(chains: Chains, lane: Lane) -> Iterator[Run]:
    """Every committed run of a lane that the map still has, in order, across resets.

    Raises:
        Retriable: the store does not answer.
    """
    head = chains.heads([lane])[lane]
    for generation in range(head.generation + 1):
        at = -1
        while links := chains.after(lane, generation, at, limit=PAGE):
            yield from (link for link in links if not isinstance(link, Reset) and link.state == "committed")
            at = links[-1].position


def narrowed(ranges: Sequence[OffsetRange], offsets: Sequence[int]) -> tuple[OffsetRange, ...]:
    """Each range cut to the records that were seen in it; ranges without any are left out.

    Args:
        ranges: growing and apart.
        offsets: of visible records, growing.
    """
    found = []
    for each in ranges:
        inside = [offset for offset in offsets if each.first <= offset < each.next]
        if inside:
            found.append(OffsetRange(inside[0], inside[-1] + 1))
    return tuple(found)
