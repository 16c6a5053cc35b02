"""Give sleeping groups their offsets on the other side: never backwards, never under live members.

What was read at the beginning of a round may be overtaken. So a group that something is to be written for is looked at
once more, and the decision is made anew; and that what we commit is no news for the way back is noted before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints
from mirrorless.groups.group_move import GroupSide, Moving, Sides, along
from mirrorless.groups.state import CheckpointMemory
from mirrorless.lane import Lane
from mirrorless.ports.groups import GroupIsActive, OffsetAndMetadata
from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope

EARLY_MS: Final = 500
"""A round that had less to do comes to its writes a little sooner after its start than the one before. It is not early:
without this, groups were seen to wait for twice the interval."""

Writes = Mapping[str, Mapping[Lane, OffsetAndMetadata]]
"""What each group is to be given."""


@dataclass(slots=True, kw_only=True)
class GroupSync:
    """The writes of group offsets, on the target and on the source."""

    followed: FlowScope
    sides: Sides
    memory: CheckpointMemory
    clock: Callable[[], int]
    """ms since the epoch."""
    every_ms: int | None
    """How often groups get their offsets on the target; None for never."""
    reverse: bool
    """Whether they get them on the source, too."""
    _done_at: int | None = None

    def sync(self, moving: list[Moving], report: RoundReport, deadline: Deadline) -> int:
        """Commit where that is switched on and due. A side that does not answer is told in the report.

        Returns:
            how many offsets were committed.
        """
        now = self.clock()
        if self._done_at is not None and self.every_ms is not None and now < self._done_at + self.every_ms - EARLY_MS:
            return 0
        self._done_at = now
        ways: list[Direction] = [] if self.every_ms is None else ["forward"]
        if self.reverse:
            ways.append("reverse")
        committed = 0
        for direction in ways:
            cluster = self.sides.there(direction)
            try:
                committed += self.sides.ask(cluster, partial(self._one_way, direction, moving, report), deadline)
            except Retriable as exc:
                report.troubles.append(f"group offsets wait on {cluster.alias}: {exc}")
        return committed

    def _one_way(self, direction: Direction, moving: list[Moving], report: RoundReport, deadline: Deadline) -> int:
        cluster = self.sides.there(direction)
        asked = {
            name: group for name, group in along(direction, moving).items() if not group.active_there and group.due()
        }
        if not asked:
            return 0
        writes = self._look_again(direction, cluster, asked, deadline)
        self._mark_echoes(direction, moving, writes)
        count = 0
        place = self.followed.place_on_target if direction == "forward" else self.followed.place_on_source
        for name, due in writes.items():
            group = asked[name]
            try:
                cluster.groups.commit(name, {place(lane): offset for lane, offset in due.items()}, deadline)
            except GroupIsActive:
                group.active_there = True  # it has just woken up; from now on it is only followed
                continue
            except Retriable as exc:
                report.troubles.append(f"{cluster.alias}: the offsets of group {name} wait: {exc}")
                continue
            group.there |= due
            count += len(due)
        return count

    def _look_again(
        self, direction: Direction, cluster: GroupSide, asked: Mapping[str, Moving], deadline: Deadline
    ) -> Writes:
        """What is still due. A group that woke up, read on and fell asleep again must not be moved backwards."""
        states = cluster.groups.states(asked, deadline)
        fresh = cluster.groups.committed([name for name in asked if states.get(name) == "empty"], deadline)
        writes = {}
        for name, group in asked.items():
            state = states.get(name, "active")
            if state == "active":
                group.active_there = True
                continue
            if state == "empty" and name not in fresh:
                continue  # it does not tell what it has, so nothing may be written over it
            group.there = self._by_lane(direction, fresh.get(name, {}))
            if due := group.due():
                writes[name] = due
        return writes

    def _by_lane(
        self, direction: Direction, places: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[Lane, OffsetAndMetadata]:
        return self.followed.on_target(places) if direction == "forward" else self.followed.on_source(places)

    def _mark_echoes(self, direction: Direction, moving: list[Moving], writes: Writes) -> None:
        """Note, before anything is committed, that these offsets are no news for the way back."""
        if not self.reverse or self.every_ms is None:
            return
        back: Direction = "reverse" if direction == "forward" else "forward"
        ways_back = along(back, moving)
        marked = {}
        for name, due in writes.items():
            known = self.memory.get(back, name) or GroupCheckpoints(
                group=name, direction=back, at=self.clock(), readiness="ready", offsets={}, told=False
            )
            carried = {topic: dict(partitions) for topic, partitions in known.carried.items()}
            for lane, offset in due.items():
                carried.setdefault(lane.topic, {})[lane.partition] = offset.offset
            document = msgspec.structs.replace(known, carried=carried)
            marked[document.key] = document
            if name in ways_back:
                ways_back[name].last = document
                ways_back[name].echoes = {lane: offset.offset for lane, offset in due.items()}
        self.memory.write(marked)
