"""The handover of a lane from its job to its mapping: the job copies what arrives until both are joined, then lets go.

    waiting    a batch of the mapping waits for the lease to end, and the lane has come to where it begins
    committed  the mapping's group has committed an offset that the lane has come to
    pinned     the group has no member: the lane's position was committed for it, and it will read from there
    idle       the group has members and no committed offset, and the log has not grown for a while: it reads the end

In each case the mapping's next batch begins at or below the lane's position, and the forwarder drops what is below.
Until one of them holds, the job continues to copy what arrives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from mirrorless.backfill.checks import BACKFILLED
from mirrorless.chain.lane_state import RUNNING, Stop
from mirrorless.clock import deadline_in
from mirrorless.copy.lane import LaneCopy
from mirrorless.errors import LaneStopped, Retriable
from mirrorless.jobs.copy_task import HandedOver, OffsetRange
from mirrorless.ports.kafka import GroupIsActive, Groups, GroupState, OffsetAndMetadata
from mirrorless.ports.stores import LaneStates

HandoverStep = Literal["waiting", "committed", "pin", "idle", "copy", "hold"]
"""The first two and `idle`: let go. `pin`: commit the position for the group, then let go. `copy`: copy to the end.
`hold`: stop the lane at its position, because the mapping would skip records."""

ANSWER_SECONDS: Final = 30.0

TROUBLES: Final = 20
"""Reads in a row that may fail."""

_JOINED: Final[dict[HandoverStep, HandedOver]] = {
    "waiting": "waiting",
    "committed": "committed",
    "pin": "pinned",
    "idle": "idle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverState:
    """The state of a lane and of its mapping."""

    position: int
    """Of the lane, upstream."""
    end: int
    """The log's stable end, upstream."""
    waiting: int | None
    """The first offset of the batch that waits for the lease."""
    committed: int | None
    """By the mapping's group."""
    group: GroupState
    quiet_seconds: float
    """Since the log's end has moved last."""


def next_step(seen: HandoverState, *, idle_after: float) -> HandoverStep:
    """Decide the next step of a lane that is copied to the log's end."""
    if seen.waiting is not None:
        # The batch was read before anything that is committed now would matter: it comes first.
        return "waiting" if seen.position >= seen.waiting else "copy"
    if seen.committed is not None:
        return "committed" if seen.position >= seen.committed else "copy"
    if seen.position < seen.end:
        return "copy"
    if seen.group != "active":
        return "pin"
    return "idle" if seen.quiet_seconds >= idle_after else "copy"


def step_at_exact_end(seen: HandoverState, *, idle_after: float) -> HandoverStep:
    """Decide the next step of a lane whose range has an end of its own."""
    if seen.waiting is not None:
        return "waiting" if seen.position >= seen.waiting else "hold"
    if seen.committed is not None:
        return "committed" if seen.position >= seen.committed else "hold"
    if seen.group != "active":
        return "pin"
    if seen.position < seen.end:
        return "hold"  # the offset at which the mapping begins is not known
    return "idle" if seen.quiet_seconds >= idle_after else "copy"


@dataclass(slots=True, kw_only=True)
class MappingHandover:
    """Implements `mirrorless.copy.lane.Ending` for a lane that has a mapping."""

    groups: Groups
    """Of the source."""
    states: LaneStates
    clock: Callable[[], int]
    """ms since the epoch."""
    monotonic: Callable[[], float] = time.monotonic
    _end: int = -1
    """Of the log, as it was read last."""
    _moved_at: float = 0.0
    """When it has moved last, monotonic seconds."""
    _troubles: int = 0

    def step(self, copy: LaneCopy) -> HandedOver | OffsetRange | None:
        """See `Ending.step`."""
        copy.phase = "hand over"
        try:
            seen = self._read(copy)
            self._troubles = 0
        except Retriable:
            self._troubles += 1
            if self._troubles >= TROUBLES:
                raise
            return None
        if seen.end != self._end:
            self._end, self._moved_at = seen.end, self.monotonic()
        decide = next_step if copy.task.hand_over else step_at_exact_end
        step = decide(seen, idle_after=copy.task.handover_seconds)
        if step == "hold":
            raise self._held(copy, seen)
        if step == "copy":
            if copy.task.hand_over and seen.position < seen.end:
                return OffsetRange(seen.position, seen.end)
            copy.note("running", "waits for an offset of the mapping")
            return None
        # It is not let go where a batch of the mapping waits further on, since this moment.
        joined = (step != "pin" or self._pin(copy, seen)) and copy.let_go(position=seen.position)
        return _JOINED[step] if joined else None

    def _read(self, copy: LaneCopy) -> HandoverState:
        task, deadline = copy.task, deadline_in(ANSWER_SECONDS)
        place = (task.read_topic, task.partition)
        waiting = dict(self.states.read([copy.lane])).get(copy.lane, RUNNING).waiting
        committed = None
        group = self.groups.states([task.group], deadline)[task.group]
        if group != "absent":
            committed_offsets = self.groups.committed([task.group], deadline)
            if task.group not in committed_offsets:
                raise Retriable(f"the committed offsets of group {task.group} could not be read", where=str(copy.lane))
            committed = committed_offsets[task.group].get(place)
        stable = copy.log.bounds(*place, deadline).next
        return HandoverState(
            position=copy.position(),
            end=stable,
            waiting=waiting,
            committed=None if committed is None else committed.offset,
            group=group,
            quiet_seconds=self.monotonic() - self._moved_at if stable == self._end else 0.0,
        )

    def _pin(self, copy: LaneCopy, seen: HandoverState) -> bool:
        """Commit the lane's position for a group without members; whether it still had none."""
        place = (copy.task.read_topic, copy.task.partition)
        try:
            self.groups.commit(copy.task.group, {place: OffsetAndMetadata(seen.position)}, deadline_in(ANSWER_SECONDS))
        except GroupIsActive:
            return False
        except Retriable as exc:
            copy.note("running", str(exc))
            return False
        return True

    def _held(self, copy: LaneCopy, seen: HandoverState) -> LaneStopped:
        """Stop the lane before it is let go: the forwarder would continue behind the gap."""
        mapping = seen.waiting if seen.waiting is not None else seen.committed
        detail = f"the backfill ended at upstream offset {seen.position} as ordered, and the mapping continues at " + (
            f"{mapping}" if mapping is not None else "an unknown offset"
        )
        stop = Stop(reason=BACKFILLED, upstream_offset=seen.position, detail=detail, at=self.clock())
        self.states.stop(copy.lane, stop)
        copy.let_go()
        return LaneStopped(
            detail,
            where=copy.lane.at(seen.position),
            hint="copy the rest by another backfill, or resume the lane to leave it out",
        )
