"""Orphans, the records of the source that were never replicated, and their policies.

An orphan is a visible record of the source at or above the lane's position that is not a copy from the target. Orphans
are kept as stretches between two copies. A stretch has the orphans' offsets, and may hold markers as well.

    report       not copied; the loss ledger has it
    quarantine   copied to `<remote topic>.orphans` on the target, once
    replay       written again at the source topic's end, once: the flow brings it to the target, groups meet it;
                 on a compacted topic withheld where another record of its key is newer

The ledger is the list of the work. It is written before the chain passes the orphans, so the next run completes a run
that died; finished work is in the chains of the job's lanes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from mirrorless.chain.lane import Lane
from mirrorless.chain.losses import Loss
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Policy
from mirrorless.reconcile.copy_tasks import ReconciledLane
from mirrorless.reconcile.difference import Stretch, apart


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


_DONE: Final[dict[Policy, str]] = {
    "report": "never replicated before the source was lost; it is on the source alone",
    "quarantine": "never replicated before the source was lost; copied to {topic} on the target",
    "replay": "never replicated before the source was lost; written again behind what came back from the target",
}

WITHHELD: Final = (
    "never replicated before the source was lost; not written again, because another record of its key is as new, or "
    "newer"
)
"""The text of a withheld orphan in the ledger."""


def orphaned(lane: ReconciledLane, policy: Policy, stretches: Iterable[Stretch], *, at: int) -> Iterator[Loss]:
    """The entries of a lane's orphans in the ledger; `at` is in ms since the epoch."""
    for stretch in stretches:
        yield Loss(
            lane=lane.forward,
            generation=lane.generation,
            first=stretch.first,
            next=stretch.next,
            cause="orphaned",
            detail=what_is_done(lane, policy),
            at=at,
        )


def what_is_done(lane: ReconciledLane, policy: Policy) -> str:
    """The text of a policy in the ledger."""
    return _DONE[policy].format(topic=lane.orphans_topic)


def to_do(lane: ReconciledLane, policy: Policy, losses: Iterable[Loss], *, position: int) -> tuple[OffsetRange, ...]:
    """The orphans that wait for their policy to be carried out.

    Args:
        lane: the lane.
        policy: `quarantine` or `replay`; for `report` there is no work.
        losses: of the forward lane, by upstream offset.
        position: of the job's lane that carries it out: what lies below is done.
    """
    if policy == "report":
        return ()
    ours = [loss for loss in losses if loss.cause == "orphaned" and loss.generation == lane.generation]
    waiting = united(
        OffsetRange(max(loss.first, position), loss.next) for loss in ours if loss.detail == what_is_done(lane, policy)
    )
    return without(waiting, withheld(lane, ours))


def withheld(lane: ReconciledLane, losses: Iterable[Loss]) -> tuple[OffsetRange, ...]:
    """The orphans that were withheld: offsets of records, growing and apart."""
    return united(
        OffsetRange(loss.first, loss.next)
        for loss in losses
        if loss.generation == lane.generation and loss.detail == WITHHELD
    )


def withholding(
    lane: ReconciledLane, losses: Iterable[Loss], older: Sequence[OffsetRange], *, at: int
) -> Iterator[Loss]:
    """The entries that divide those of a lane's replay, in the order in which they are to be noted.

    The last part first: the one that replaces the whole entry comes when all others are noted.

    Args:
        lane: the lane.
        losses: of the forward lane.
        older: the orphans to withhold; growing and apart.
        at: ms since the epoch.
    """
    replayed = what_is_done(lane, "replay")
    for loss in losses:
        if loss.generation != lane.generation or loss.detail != replayed:
            continue
        whole = (OffsetRange(loss.first, loss.next),)
        kept = without(whole, older)
        parts = [(part, replayed) for part in kept] + [(part, WITHHELD) for part in without(whole, kept)]
        if kept == whole:
            continue
        for part, detail in sorted(parts, key=lambda each: each[0].first, reverse=True):
            yield replace(loss, first=part.first, next=part.next, detail=detail, at=at)


def lane_of(lane: ReconciledLane, policy: Policy) -> Lane:
    """The lane of the job that carries a policy out."""
    return lane.replay if policy == "replay" else lane.orphans
