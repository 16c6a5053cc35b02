"""When is a lane joined to its mapping, so that the job may let go of it? Pure decisions over what is seen.

    waiting    a batch of the mapping waits for the lease to end, and the lane has come to where it begins
    committed  the mapping's group has committed an offset that the lane has come to
    pinned     the group sleeps: the lane's position was committed for it, and there it will go on
    idle       the group is there, has committed nothing, and nothing came for a while: it reads from the log's end

Whichever it is: the mapping's next batch begins at or below the lane's position, and the forwarder drops what is
below. While none of them holds, the job goes on copying what arrives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from mirrorless.backfill.checks import BACKFILLED
from mirrorless.errors import LaneStopped, Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.lane_copy import LaneCopy, deadline_in
from mirrorless.lane_state import RUNNING, Stop
from mirrorless.ports.groups import GroupIsActive, Groups, GroupState, OffsetAndMetadata
from mirrorless.ports.stores import LaneStates

Joined = Literal["waiting", "committed", "pinned", "idle"]
HandoverStep = Literal["waiting", "committed", "pin", "idle", "copy", "hold"]
"""The first two and `idle`: let go. `pin`: commit the position for the group, then let go. `copy`: go on to the log's
end. `hold`: stop the lane where it is, for the mapping would skip what lies between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverState:
    """How a lane and its mapping stand to each other."""

    position: int
    """Of the lane, upstream."""
    end: int
    """The log's stable end, upstream."""
    waiting: int | None
    """Where the batch begins that waits for the lease."""
    committed: int | None
    """By the mapping's group."""
    group: GroupState
    quiet_seconds: float
    """Since the log's end has moved last."""


def next_step(seen: HandoverState, *, idle_after: float) -> HandoverStep:
    """What to do with a lane that goes on to the log's end."""
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
    """What to do with a lane whose range ends where the operator said."""
    if seen.waiting is not None:
        return "waiting" if seen.position >= seen.waiting else "hold"
    if seen.committed is not None:
        return "committed" if seen.position >= seen.committed else "hold"
    if seen.group != "active":
        return "pin"
    if seen.position < seen.end:
        return "hold"  # nobody can tell where the mapping begins
    return "idle" if seen.quiet_seconds >= idle_after else "copy"


LOOK_SECONDS: Final = 0.5
"""Between two looks at a mapping that does not show itself."""


ASK_SECONDS: Final = 30.0


TROUBLES: Final = 20
"""Looks in a row that may fail."""


_JOINED: Final[dict[HandoverStep, Joined]] = {
    "waiting": "waiting",
    "committed": "committed",
    "pin": "pinned",
    "idle": "idle",
}


@dataclass(slots=True, kw_only=True)
class MappingHandover:
    """Implements `mirrorless.jobs.lane_copy.Ending` for lanes that have a mapping."""

    groups: Groups
    """Of the source."""
    states: LaneStates
    clock: Callable[[], int]
    """ms since the epoch."""
    monotonic: Callable[[], float] = time.monotonic

    def end(self, copy: LaneCopy) -> Joined:
        """See `Ending.end`."""
        copy.phase = "hand over"
        decide = next_step if copy.task.hand_over else step_at_exact_end
        end, moved_at, troubles = -1, self.monotonic(), 0
        while True:
            copy.hold()
            try:
                seen = self._look(copy, end, moved_at)
                troubles = 0
            except Retriable:
                troubles += 1
                if troubles >= TROUBLES:
                    raise
                copy.sleep(LOOK_SECONDS)
                continue
            if seen.end != end:
                end, moved_at = seen.end, self.monotonic()
            step = decide(seen, idle_after=copy.task.handover_seconds)
            if step == "hold":
                raise self._held(copy, seen)
            if step == "copy":
                self._copy_on(copy, seen)
                continue
            if step == "pin" and not self._pin(copy, seen):
                continue
            if not copy.let_go(position=seen.position):
                continue  # the mapping has shown itself further on in this very moment
            return _JOINED[step]

    def _look(self, copy: LaneCopy, end: int, moved_at: float) -> HandoverState:
        task, deadline = copy.task, deadline_in(ASK_SECONDS)
        place = (task.read_topic, task.partition)
        waiting = dict(self.states.read([copy.lane])).get(copy.lane, RUNNING).waiting
        committed = None
        group = self.groups.states([task.group], deadline)[task.group]
        if group != "absent":
            told = self.groups.committed([task.group], deadline)
            if task.group not in told:
                raise Retriable(f"group {task.group} does not tell what it has committed", where=str(copy.lane))
            committed = told[task.group].get(place)
        stable = copy.log.bounds(*place, deadline).next
        return HandoverState(
            position=copy.position(),
            end=stable,
            waiting=waiting,
            committed=None if committed is None else committed.offset,
            group=group,
            quiet_seconds=self.monotonic() - moved_at if stable == end else 0.0,
        )

    @staticmethod
    def _copy_on(copy: LaneCopy, seen: HandoverState) -> None:
        if copy.task.hand_over and seen.position < seen.end:
            copy.copy(OffsetRange(seen.position, seen.end))
        else:
            copy.note("running", "waits for the mapping to show how far it is")
            copy.sleep(LOOK_SECONDS)

    def _pin(self, copy: LaneCopy, seen: HandoverState) -> bool:
        """Let the sleeping group go on where the lane stands; whether it was still asleep."""
        place = (copy.task.read_topic, copy.task.partition)
        try:
            self.groups.commit(copy.task.group, {place: OffsetAndMetadata(seen.position)}, deadline_in(ASK_SECONDS))
        except GroupIsActive:
            return False
        except Retriable as exc:
            copy.note("running", str(exc))
            copy.sleep(LOOK_SECONDS)
            return False
        return True

    def _held(self, copy: LaneCopy, seen: HandoverState) -> LaneStopped:
        """Stop the lane before it is let go: the forwarder would go on behind the hole."""
        mapping = seen.waiting if seen.waiting is not None else seen.committed
        detail = f"the backfill ended at upstream offset {seen.position} as ordered, and the mapping goes on at " + (
            f"{mapping}" if mapping is not None else "an offset that nobody knows"
        )
        stop = Stop(reason=BACKFILLED, upstream_offset=seen.position, detail=detail, at=self.clock())
        self.states.stop(copy.lane, stop)
        copy.let_go()
        return LaneStopped(
            detail,
            where=copy.lane.at(seen.position),
            hint="copy the rest by another backfill, or resume the lane to leave it out",
        )
