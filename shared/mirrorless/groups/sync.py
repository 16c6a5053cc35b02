"""The commits for groups without members on the other side: never backwards, never under live members.

What was read at the start of a round may be outdated. So a group with offsets due is read once more, and the decision
is made again on that; and before a commit, its offset is marked as not to be carried back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, SyncedGroup, TranslatedGroup
from mirrorless.groups.clusters import DIRECTIONS, GroupSide, Sides
from mirrorless.groups.state import CheckpointStore
from mirrorless.lane import Lane
from mirrorless.ports.kafka import Deadline, GroupIsActive, OffsetAndMetadata, TopicPartition
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope

EARLY_MS: Final = 500
"""A round that had less to do reaches its writes a little sooner after its start than the one before. It is not early:
without this, groups were seen to wait for twice the interval."""

SyncedGroups = Mapping[tuple[Direction, str], SyncedGroup]
"""By direction and name, in the round's order."""

Writes = Mapping[str, Mapping[Lane, OffsetAndMetadata]]
"""The offsets to commit, by group."""


@dataclass(slots=True, kw_only=True)
class GroupSync:
    """The writes of group offsets, on the target and on the source."""

    scope: FlowScope
    sides: Sides
    store: CheckpointStore
    clock: Callable[[], int]
    """ms since the epoch."""
    every_ms: int | None
    """The interval of the commits on the target; None for never."""
    reverse: bool
    """Whether offsets are committed on the source, too."""
    _done_at: int | None = None

    def sync(
        self,
        groups: Sequence[TranslatedGroup],
        active: Collection[tuple[Direction, str]],
        report: RoundReport,
        deadline: Deadline,
    ) -> tuple[SyncedGroups, int]:
        """Commit where that is switched on and due. A side that does not answer goes into the report.

        Args:
            groups: of both directions.
            active: those with members on the other side.
            report: gets what went wrong.
            deadline: of the round.

        Returns:
            the groups as they stand after the commits, and the number of offsets committed.
        """
        synced: SyncedGroups = {
            (group.direction, group.name): SyncedGroup(
                translated=group, active_there=(group.direction, group.name) in active, there=group.there
            )
            for group in groups
        }
        now = self.clock()
        if self._done_at is not None and self.every_ms is not None and now < self._done_at + self.every_ms - EARLY_MS:
            return synced, 0
        self._done_at = now
        enabled = {"forward": self.every_ms is not None, "reverse": self.reverse}
        committed = 0
        for direction in (each for each in DIRECTIONS if enabled[each]):
            cluster = self.sides.there(direction)
            try:
                synced, count = self.sides.call(cluster, partial(self._sync_one, direction, synced, report), deadline)
            except Retriable as exc:
                report.troubles.append(f"group offsets wait on {cluster.alias}: {exc}")
            else:
                committed += count
        return synced, committed

    def _sync_one(
        self, direction: Direction, groups: SyncedGroups, report: RoundReport, deadline: Deadline
    ) -> tuple[SyncedGroups, int]:
        """One direction of `sync`."""
        cluster = self.sides.there(direction)
        candidates = {
            name: group
            for (each, name), group in groups.items()
            if each == direction and not group.active_there and group.due()
        }
        if not candidates:
            return groups, 0

        # 1. Read again. 2. Mark. 3. Commit.
        fresh = self._read_again(direction, cluster, candidates, deadline)
        writes = {name: due for name, group in fresh.items() if not group.active_there and (due := group.due())}
        echoes = self._mark_echoes(direction, writes)
        results, count = dict(groups), 0
        for name, group in fresh.items():
            results[direction, name] = group
        for key, marked in echoes.items():
            if key in results:
                results[key] = replace(results[key], echoes=marked)
        for name, due in writes.items():
            group = fresh[name]
            try:
                cluster.groups.commit(
                    name, {self._partition(direction, lane): offset for lane, offset in due.items()}, deadline
                )
            except GroupIsActive:
                # It got members after the second read: its own commits count from now on.
                results[direction, name] = replace(group, active_there=True)
            except Retriable as exc:
                report.troubles.append(f"{cluster.alias}: the offsets of group {name} wait: {exc}")
            else:
                results[direction, name] = replace(group, there={**group.there, **due})
                count += len(due)
        return results, count

    def _read_again(
        self, direction: Direction, cluster: GroupSide, candidates: Mapping[str, SyncedGroup], deadline: Deadline
    ) -> dict[str, SyncedGroup]:
        """The groups as they are now: one that had members in the meantime must not be moved backwards.

        A group whose commits cannot be read is left out, so that nothing is written over them.
        """
        states = cluster.groups.states(candidates, deadline)
        empty = [name for name in candidates if states.get(name) == "empty"]
        committed = cluster.groups.committed(empty, deadline)
        fresh = {}
        for name, group in candidates.items():
            state = states.get(name, "active")
            if state == "active":
                fresh[name] = replace(group, active_there=True)
            elif state == "absent" or name in committed:
                fresh[name] = replace(group, there=self._by_lane(direction, committed.get(name, {})))
        return fresh

    def _partition(self, direction: Direction, lane: Lane) -> TopicPartition:
        return self.scope.remote_partition(lane) if direction == "forward" else self.scope.source_partition(lane)

    def _by_lane(
        self, direction: Direction, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[Lane, OffsetAndMetadata]:
        return self.scope.on_target(offsets) if direction == "forward" else self.scope.on_source(offsets)

    def _mark_echoes(self, direction: Direction, writes: Writes) -> Mapping[tuple[Direction, str], Mapping[Lane, int]]:
        """Store, before anything is committed, that these offsets are not to be carried back.

        Returns:
            the marked offsets of the other direction's groups.

        Raises:
            Retriable: the store does not answer.
        """
        if not self.reverse or self.every_ms is None:
            return {}
        back: Direction = "reverse" if direction == "forward" else "forward"
        documents = {}
        for name, due in writes.items():
            stored = self.store.get(back, name) or GroupCheckpoints(
                group=name, direction=back, at=self.clock(), readiness="ready", offsets={}, emitted=False
            )
            carried = {topic: dict(partitions) for topic, partitions in stored.carried.items()}
            for lane, offset in due.items():
                carried.setdefault(lane.topic, {})[lane.partition] = offset.offset
            document = msgspec.structs.replace(stored, carried=carried)
            documents[document.key] = document
        self.store.write(documents)
        return {(back, name): {lane: offset.offset for lane, offset in due.items()} for name, due in writes.items()}
