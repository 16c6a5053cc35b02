"""Admission of a lane's records to a batch: lanes wait while a job holds them, or until their history is copied.

Waiting is no stop: no operator has to act, a job has to end. What waits is delivered again. A job that was killed lets
go of nothing: when its leases have ended, a batch above a lane's position waits for another job.

Pure: the head and the state of a lane come in, what it waits for comes out, or None.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState, Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why nothing of a lane was written, and from which upstream offset on it waits."""

    upstream_offset: int
    detail: str
    hint: str


def waits_for_lease(lane: Lane, lease: Lease, first: int, *, now: int) -> Waiting:
    """Why a lane waits that another holder has leased.

    Args:
        lane: the lane.
        lease: of another holder.
        first: the upstream offset at which the batch begins in this lane.
        now: ms since the epoch.
    """
    return Waiting(
        upstream_offset=first,
        detail=f"job run {lease.holder} has this lane to itself, for {(lease.until - now) / 1000:.0f} s more at least",
        hint="wait: the lane goes on when the job lets go of it, or its lease ends; "
        f"if the job is dead, `mirrorless lanes release {lane.arguments} --execute` ends the lease now",
    )


def waits_for_rest(lane: Lane, head: Head, lease: Lease, first: int) -> Waiting | None:
    """Whether a job that ended without letting go of the lane may have left out what lies before this batch.

    Args:
        lane: the lane.
        head: where the lane's chain ends; not in doubt.
        lease: that has ended.
        first: the upstream offset at which the batch begins in this lane.
    """
    if first <= head.position:
        return None
    return Waiting(
        upstream_offset=first,
        detail=f"job run {lease.holder} ended at {head.position} without letting go of this lane, and the mapping is "
        f"at {first}",
        hint=f"`mirrorless backfill start '{lane.flow}' {lane.topic}` copies what lies between; "
        f"`mirrorless lanes resume {lane.arguments} --execute` leaves it out",
    )


def waits_for_history(lane: Lane, head: Head, state: LaneState, first: int, *, history_first: bool) -> Waiting | None:
    """Whether a job has yet to bring what lies before this batch.

    Args:
        lane: the lane.
        head: where the lane's chain ends; not in doubt.
        state: of the lane.
        first: the upstream offset at which the batch begins in this lane.
        history_first: whether a lane of this flow begins with its history.
    """
    if head == NEW_LANE:
        if not history_first or first == 0:
            return None
        return Waiting(
            upstream_offset=first,
            detail="the flow starts with a backfill, and none has brought this lane's history yet",
            hint=f"`mirrorless backfill start '{lane.flow}' {lane.topic}` brings it; the lane goes on by itself once "
            "that is done",
        )
    after_job = head.run is not None and head.run.examined
    if after_job and state.waiting is not None and first > head.position:
        # A batch waited while the job ran, so the job came as far as that batch. A mapping that was restarted since,
        # without an offset of its own, has moved on: to go on with it would leave out what lies between.
        return Waiting(
            upstream_offset=first,
            detail=f"a job copied up to {head.position}, and the mapping has moved on to {first} since",
            hint=f"`mirrorless backfill start '{lane.flow}' {lane.topic}` copies what lies between; "
            f"`mirrorless lanes resume {lane.arguments} --execute` leaves it out",
        )
    return None
