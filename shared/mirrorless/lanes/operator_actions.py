"""The operator's actions on a lane: hold, resume, quarantine, reset.

    stop reason     resume            quarantine           reset
    refused         retries           skips the record     skips up to an offset
    contradiction   retries           no                   begins a new generation where the source is now
    broken          retries           no                   drops a run in doubt, resumes from an offset
    recreated       until the next    no                   begins a new generation with the new topic
                    refresh
    truncated       retries           no                   begins a new generation where the source ended
    held            resumes           no                   as any lane
    backfilled      resumes where     no                   as any lane
                    its mapping is

A lane that is leased to a job can be held, for afterwards; every other action waits for the job.

Pure: the head and the state of a lane come in, a plan or a refusal comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.errors import MirrorlessError
from mirrorless.lane import Lane
from mirrorless.lane_state import NEW_LANE, Head, LaneState, Lease, Stop
from mirrorless.losses import Loss
from mirrorless.operator_commands import reset_command, reset_lane
from mirrorless.run import Reset, Run


class NotAllowed(MirrorlessError):
    """The action does not fit the lane's state. Nothing was changed."""


_OTHER_RECORDS = frozenset({"contradiction", "recreated", "truncated"})
"""Stop reasons after which upstream offsets from the stop on may belong to other records than in the map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """The writes of a reset, in their required order."""

    loss: Loss | None
    """First: the skipped offsets. Writing the loss twice keeps one."""
    link: Reset
    """Then: the link itself. Last, the lane's stop and quarantine orders are dropped."""
    given_up: Run | None
    """The run in doubt that the link follows: it cannot be settled, and its writer is fenced already."""
    repeated: tuple[int, int] | None
    """Upstream offsets [from, to) that were replicated before and will be replicated again."""


def advice(lane: Lane, stop: Stop, *, on_topic: bool = False) -> str:
    """One sentence on what the operator can do about a stop, with complete commands.

    Args:
        lane: that is stopped.
        stop: why.
        on_topic: whether the reset, and the end of holding, are to be those of all stopped lanes of the topic.
    """
    of_topic = reset_command(lane.flow, lane.topic, None, "earliest", reason="see status")
    if on_topic and stop.reason == "held":
        return _ADVICE["held"].format(resume=f"`mirrorless lanes resume '{lane.flow}' {lane.topic} --execute`")
    return _ADVICE.get(stop.reason, _LOOK).format(
        resume=f"`mirrorless lanes resume {lane.arguments} --execute`",
        quarantine=f"`mirrorless lanes quarantine {lane.arguments} {stop.upstream_offset} --execute`",
        reset=f"`{of_topic}`" if on_topic else reset_lane(lane, "earliest"),
        reset_to_stop=reset_lane(lane, stop.upstream_offset),
        backfill=f"`mirrorless backfill start '{lane.flow}' {lane.topic}`",
    )


_LOOK = "read the detail, compare the target with the map, then {resume} or {reset}"
_ADVICE = {
    "refused": (
        "let the target take the record (its max.message.bytes, its cleanup.policy), then {resume}; or leave out "
        "exactly this record: {quarantine}"
    ),
    "contradiction": (
        "check whether the source topic was re-created or truncated: then {reset}; "
        "if its group's offsets were moved by hand, move them back, then {resume}"
    ),
    "broken": (
        "compare the target with the map: if its records are back, {resume}; if the remote topic was re-created or "
        "lost records, {reset}, or instead of earliest the source's offset from which the target should have them again"
    ),
    "recreated": (
        "{reset} replicates the new topic from its first record, behind what the target has of the old one, or closes "
        "the lane where the new topic has no such partition; "
        "{resume} holds only until the next look at the topic"
    ),
    "truncated": (
        "{reset_to_stop} goes on with what the source has written since it lost its end; the target keeps what the "
        "source lost"
    ),
    "held": "{resume} lets the lane go on from here, once there is no reason any more to hold it",
    "backfilled": (
        "{backfill} goes on from here to where the mapping is; or {resume} goes on with the mapping, and what lies "
        "between is left out: the loss ledger will say what it was"
    ),
}


def plan_hold(head: Head, state: LaneState, *, reason: str, now: int) -> Stop | None:
    """Hold a lane at its position, as before a reconciliation: nothing is written until it is resumed.

    Args:
        head: of the lane's chain.
        state: of the lane.
        reason: in the operator's words.
        now: ms since the epoch.

    Returns:
        the stop to store; None where the lane is already stopped for any reason.
    """
    if state.stop is not None:
        return None
    return Stop(reason="held", upstream_offset=head.position, detail=reason, at=now)


def resumption(lane: Lane, head: Head, state: LaneState, *, now: int) -> str | None:
    """One sentence on what resuming a lane does; None where there is nothing to resume.

    Raises:
        NotAllowed: the lane waits for a job, and no action ends that; or its flow is fenced.
    """
    stop, lease = state.stop, state.lease
    if state.fenced and stop is not None:
        raise NotAllowed(
            f"the whole flow is fenced: {stop.detail}",
            where=str(lane),
            hint=f"`mirrorless failback '{lane.flow}' --execute` ends that",
        )
    if stop is not None and stop.reason == "backfilled":
        return (
            "Drop the stop: the mapping goes on where it is. What lies between is left out, and the loss ledger says "
            "what of it was a loss once the lane was checked."
        )
    if stop is not None and stop.reason == "held":
        return "Drop the stop: the lane goes on from there with the next delivery."
    if stop is not None:
        return "Drop the stop: the next delivery tries again from there, and stops again if nothing has changed."
    if state.waiting is None or state.waiting <= head.position:
        return None
    if lease is not None and now < lease.until:
        raise NotAllowed(_leased(lease), where=str(lane), hint=_release(lane))
    if head == NEW_LANE and lease is None:
        raise NotAllowed(
            "the lane waits for its history, for its flow starts with a backfill",
            where=lane.at(state.waiting),
            hint=f"`mirrorless backfill start '{lane.flow}' {lane.topic}` brings it; "
            f"{reset_lane(lane, state.waiting)} begins without it",
        )
    return (
        f"Go on with the mapping from upstream offset {state.waiting} on: what lies between is left out, and the loss "
        "ledger says what of it was a loss once the lane was checked."
    )


def given_up(state: LaneState, *, now: int) -> Lease | None:
    """The lease of a dead job that resuming a lane drops, with what the job left out; None where there is none."""
    ended = state.lease is not None and now >= state.lease.until
    return state.lease if ended and (state.stop is None or state.stop.reason == "backfilled") else None


def _release(lane: Lane) -> str:
    return (
        "cancel the job, or let it end; if it is dead, "
        f"`mirrorless lanes release {lane.arguments} --execute` ends its lease"
    )


def _leased(lease: Lease) -> str:
    return f"job run {lease.holder} has this lane to itself"


def check_quarantine(lane: Lane, state: LaneState, upstream_offset: int) -> None:
    """Check that the lane is stopped by a refused record at this offset.

    Raises:
        NotAllowed: the lane is not stopped, not because of a refused record, or at another offset.
    """
    stop = state.stop
    place = lane.at(upstream_offset)
    if stop is None:
        raise NotAllowed(
            "the lane is not stopped, so nothing has to be left out",
            where=place,
            hint="a record can only be left out once the target has refused it",
        )
    if stop.reason != "refused":
        raise NotAllowed(
            f"the lane is not stopped by a refused record, but by: {stop.reason}", where=place, hint=advice(lane, stop)
        )
    if stop.upstream_offset != upstream_offset:
        raise NotAllowed(
            f"the lane is stopped at upstream offset {stop.upstream_offset}, not here",
            where=place,
            hint=f"look at the record at {stop.upstream_offset}, and name that offset if it is to be left out",
        )


def plan_reset(lane: Lane, head: Head, state: LaneState, to: int, *, reason: str, now: int) -> ResetPlan:
    """Plan the close of the lane's chain, and a new generation that begins at an upstream offset.

    Args:
        lane: the lane.
        head: of its chain.
        state: of the lane.
        to: the upstream offset to resume from.
        reason: in the operator's words, kept in the chain and in the ledger.
        now: ms since the epoch.

    Raises:
        NotAllowed: a job has the lane; a run in doubt can still be settled; or the lane was never replicated.
    """
    stop = state.stop
    if state.lease is not None and now < state.lease.until:
        raise NotAllowed(_leased(state.lease), where=str(lane), hint=_release(lane))
    if head == NEW_LANE and stop is None and state.waiting is None:
        raise NotAllowed(
            "nothing of this lane was ever replicated",
            where=str(lane),
            hint="check flow, topic and partition; where a new lane begins is said by the flow's `start`",
        )
    given_up = None
    if head.run is not None and head.in_doubt:
        # The forwarder fences the run's writer before it stops a lane as broken: only then can the run be given up.
        if stop is None or stop.reason != "broken" or stop.upstream_offset != head.run.position:
            raise NotAllowed(
                "the newest run is in doubt, and its transaction may still be committed",
                where=lane.at(head.run.position),
                hint="let the next delivery settle it, where the lane is stopped with "
                f"`mirrorless lanes resume {lane.arguments} --execute`; then reset",
            )
        given_up = head.run
    return ResetPlan(
        loss=_skipped(lane, head, stop, to, reason=reason, now=now),
        link=Reset(
            lane=lane,
            generation=head.generation,
            position=head.position,
            to_generation=head.generation + 1,
            next=to,
            reason=reason,
            at=now,
        ),
        given_up=given_up,
        repeated=(to, head.position) if to < head.position else None,
    )


def _skipped(lane: Lane, head: Head, stop: Stop | None, to: int, *, reason: str, now: int) -> Loss | None:
    """The offsets between the first record that still waits and the new position.

    Where the source has changed, the waiting records begin below the position, at the stop. They may be other records
    than those replicated from the same offsets, so they count for the new generation.
    """
    contradicted = stop is not None and stop.reason in _OTHER_RECORDS and stop.upstream_offset < head.position
    first = stop.upstream_offset if stop is not None and contradicted else head.position
    if to <= first:
        return None
    doubt = ""
    if contradicted:
        doubt = "; the source contradicted the map here, so whether the target has these very records is not known"
    elif head.in_doubt:
        doubt = "; the first of these were in a run in doubt, so the target may have them"
    return Loss(
        lane=lane,
        generation=head.generation + 1 if contradicted else head.generation,
        first=first,
        next=to,
        cause="reset",
        detail=f"skipped when the lane was reset to {to}: {reason}{doubt}",
        at=now,
    )
