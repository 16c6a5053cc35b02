"""How does a lane get from its job to its mapping? It copies what arrives until the two are joined, then lets go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mirrorless.backfill.checks import BACKFILLED
from mirrorless.backfill.handover import HandoverState, HandoverStep, Joined, next_step, step_at_exact_end
from mirrorless.errors import LaneStopped, Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.lane_copy import LaneCopy, deadline_in
from mirrorless.lane_state import RUNNING, Stop
from mirrorless.ports.groups import GroupIsActive, Groups, OffsetAndMetadata
from mirrorless.ports.stores import LaneStates

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
