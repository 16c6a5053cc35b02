"""The operator's actions on a lane: hold, resume, quarantine, reset.

    stop reason     resume            quarantine           reset
    refused         retries           skips the record,    skips up to an offset
                                      or a range from there
    contradiction   retries           no                   begins a new generation where the source is now
    broken          retries           no                   drops a run in doubt, resumes behind what the target has
    remote_         until the next    no                   begins a new generation, as for a new remote topic
      recreated     refresh
    expired         stops again       no                   begins a new generation behind what the target has
    recreated       until the next    no                   begins a new generation with the new topic
                    refresh
    truncated       retries           no                   begins a new generation where the source ended
    held            resumes           no                   as any lane
    backfilled      resumes where     no                   as any lane
                    its mapping is
    undelivered     retries           no                   behind it, it is left out

A lane that is leased to a job can be held, for afterwards; every other action waits for the job.

Pure: the head and the state of a lane come in, a plan or a refusal comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState, Lease, LeftOut, ReplicatedRanges, Stop, StopReason
from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Reset, Run
from mirrorless.errors import InDoubt, Refused
from mirrorless.flow.naming import reset_command, reset_lane
from mirrorless.protocol.log_parting import going_on, until_stop
from mirrorless.protocol.refusal_causes import ANY_REMEDY, REMEDIES


class NotAllowed(Refused):
    """The action does not fit the lane's state. Nothing was changed."""


ORDERS: Final = 200
"""Of a lane, at most: they are in one item, which each event reads."""

LONGEST_WHY: Final = 200
"""Characters of a refusal that are kept with an order, and with each loss by it."""

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
    stop: Stop | None = None
    """Last: at which the new generation ends, for what follows was replicated before."""


def advice(lane: Lane, stop: Stop, *, on_topic: bool = False) -> str:
    """One sentence on what the operator can do about a stop, with complete commands.

    Args:
        lane: that is stopped.
        stop: why.
        on_topic: whether the reset, and the end of holding, are to be those of all stopped lanes of the topic.
    """
    of_topic = reset_command(lane.flow, lane.topic, None, "earliest", reason="see status")
    to_target = reset_command(lane.flow, lane.topic, None, "target", reason="see status")
    if on_topic and stop.reason == "held":
        return _ADVICE["held"].format(resume=f"`mirrorless lanes resume '{lane.flow}' {lane.topic} --execute`")
    alike = f"`mirrorless lanes quarantine {lane.arguments} {stop.upstream_offset} --alike --execute`"
    return _ADVICE.get(stop.reason, _LOOK).format(
        remedy=REMEDIES.get(stop.cause, ANY_REMEDY).format(flow=lane.flow, topic=lane.topic),
        alike=f", or all that are refused for the same cause: {alike}" if stop.cause else "",
        resume=f"`mirrorless lanes resume {lane.arguments} --execute`",
        resume_plan=f"`mirrorless lanes resume {lane.arguments}`",
        quarantine=f"`mirrorless lanes quarantine {lane.arguments} {stop.upstream_offset} --execute`",
        reset=f"`{of_topic}`" if on_topic else reset_lane(lane, "earliest"),
        going_on=going_on(lane, stop),
        reset_to_target=f"`{to_target}`" if on_topic else reset_lane(lane, "target"),
        backfill=f"`mirrorless backfill start '{lane.flow}' {lane.topic}`",
        topic=lane.topic,
        behind=reset_lane(lane, stop.upstream_offset + 1),
    )


_LOOK = "read the detail, compare the target with the map, then {resume} or {reset}"
_ADVICE: Final[Mapping[StopReason, str]] = {
    "refused": "{remedy}, then {resume}; or leave out exactly this record: {quarantine}{alike}",
    "contradiction": (
        "wait for two minutes: where the source lost its end, the stop then names the place; if it does not, check "
        "whether the source topic was re-created: then {reset}; "
        "if its mapping's group was moved back by hand, {resume_plan} says how to move it on; then {resume}"
    ),
    "broken": (
        "if records of the target are only out of reach, bring them back, then {resume}; if it lost them, "
        "{reset_to_target} goes on behind the last record that it has"
    ),
    "remote_recreated": (
        "{reset} copies again what the source still has; {resume} holds only until the next look at the topic"
    ),
    "expired": "{reset_to_target} goes on behind the last record that the target has",
    "recreated": (
        "{reset} replicates the new topic from its first record, behind what the target has of the old one, or closes "
        "the lane where the new topic has no such partition; "
        "{resume} holds only until the next look at the topic"
    ),
    "truncated": (
        "{going_on} goes on with what the source has written since it lost its end; the target keeps what the source "
        "lost"
    ),
    "held": "{resume} lets the lane go on from here, once there is no reason any more to hold it",
    "backfilled": (
        "{backfill} goes on from here to where the mapping is; or {resume} goes on with the mapping, and what lies "
        "between is left out: the loss ledger will say what it was"
    ),
    "undelivered": (
        "make '{topic}: schedule' the first entry of the flow's trigger.overrides in replication.yaml, deploy, then "
        "{resume}: the schedule reads the log itself, so this record and all behind it arrive once and in order; or "
        "leave it out: {behind} notes it as lost"
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
        NotAllowed: the lane waits for a job, and no action ends that; or its flow is stopped.
    """
    stop, lease = state.stop, state.lease
    if state.of_flow and stop is not None:
        raise NotAllowed(
            f"the whole flow is stopped: {stop.detail}",
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


def plan_quarantine(
    lane: Lane, head: Head, state: LaneState, upstream_offset: int, *, to: int | None = None, alike: bool = False
) -> tuple[LeftOut, ...]:
    """Plan to leave out a refused record, and others behind it.

    Args:
        lane: the lane.
        head: of its chain: what lies below is passed, and its orders are over.
        state: of the lane.
        upstream_offset: of the record.
        to: the upstream offset behind the range; None: it is only the record.
        alike: whether in the range only what is refused for the same cause is left out.

    Returns:
        all orders that the lane has then.

    Raises:
        NotAllowed: the lane is not stopped, not because of a refused record, or at another offset; or the range cannot
            be.
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
    if alike and not stop.cause:
        raise NotAllowed(
            "the stop does not have the cause of the refusal: an earlier version wrote it",
            where=place,
            hint=f"`mirrorless lanes resume {lane.arguments} --execute`: the next stop has it",
        )
    following = upstream_offset + 1 if to is None else to
    if following <= upstream_offset:
        raise NotAllowed(f"the range ends at {following}, before this record", where=place, hint="name a later offset")
    order = LeftOut(
        first=upstream_offset, next=following, cause=stop.cause if alike else "", why=stop.detail[:LONGEST_WHY]
    )
    kept = [each for each in state.quarantine if each.next > head.position and each != order]
    if len(kept) >= ORDERS:
        raise NotAllowed(
            f"the lane has {len(kept)} orders that are not carried out yet",
            where=place,
            hint="leave out a range by one order: --to OFFSET, or --alike",
        )
    return (*kept, order)


def plan_reset(
    lane: Lane,
    head: Head,
    state: LaneState,
    to: int,
    *,
    reason: str,
    now: int,
    behind_target: bool = False,
    replicated: ReplicatedRanges = (),
) -> ResetPlan:
    """Plan the close of the lane's chain, and a new generation that begins at an upstream offset.

    Args:
        lane: the lane.
        head: of its chain, as it is `believed`.
        state: of the lane.
        to: the upstream offset to resume from.
        reason: in the operator's words, kept in the chain and in the ledger.
        now: ms since the epoch.
        behind_target: whether the target was seen to end there: it has what lies below, and nothing from there on.
        replicated: see `Stop.replicated`; the lane is to stand still where it begins.

    Raises:
        NotAllowed: a job has the lane; the lane was never replicated; it has not come to where it is to stand still; or
            it would not come there.
        InDoubt: its newest run can still be settled.
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
    until = replicated[0][0] if replicated else None
    if until is not None and not to <= until < replicated[0][1]:
        raise NotAllowed(
            f"the lane is to stand still at {until}, which is not between {to} and where what was replicated ends",
            where=lane.at(head.position),
            hint="--until names the offset from which the source's present records were replicated already",
        )
    if stop is not None and stop.begins_replicated and head.position < stop.upstream_offset and to > head.position:
        raise NotAllowed(
            f"the lane is on its way to {stop.upstream_offset}: what lies before it would be left out",
            where=lane.at(head.position),
            hint=f"wait until it stands there; {reset_lane(lane, head.position)} goes on without that stop",
        )
    given_up = None
    if head.run is not None and head.in_doubt:
        # The forwarder fences the run's writer before it stops a lane as broken: only then can the run be given up.
        if stop is None or stop.reason != "broken" or stop.upstream_offset != head.run.position:
            raise InDoubt(
                "the newest run is in doubt, and its transaction may still be committed",
                where=lane.at(head.run.position),
                hint="wait for the lane check, which comes by each minute and settles it once a transaction must have "
                "ended (`transaction.timeout.ms`, and 10 s): then run the command again",
            )
        given_up = head.run
    return ResetPlan(
        loss=None if behind_target else _skipped(lane, head, stop, to, reason=reason, now=now),
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
        repeated=(to, min(head.position, until or head.position)) if to < head.position and not behind_target else None,
        stop=until_stop(lane, replicated, now=now) if replicated else None,
    )


def _skipped(lane: Lane, head: Head, stop: Stop | None, to: int, *, reason: str, now: int) -> Loss | None:
    """The offsets between the first record that still waits and the new position.

    Where the source has changed, the waiting records begin below the position, at the stop. They may be other records
    than those replicated from the same offsets, so they count for the new generation.
    """
    contradicted = stop is not None and stop.reason in _OTHER_RECORDS and stop.upstream_offset < head.position
    first = stop.upstream_offset if stop is not None and contradicted else head.position
    if stop is not None and stop.replicated and first <= stop.replicated[0][0] and to == stop.replicated[0][1]:
        to = stop.replicated[0][0]  # the rest was replicated before
    if to <= first:
        return None
    doubt = ""
    if contradicted:
        doubt = "; the source contradicted the map here, so whether the target has these very records is not known"
    elif head.expired:
        doubt = "; the end of the offset map was not known here, so the target may have them"
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
