"""The commits for groups without members on the other side.

They never go backwards, under live members, where members have just left, or over another application's offsets. What
was read at the start of a round may be outdated. So a group with offsets due is read once more, and the decision is
made again on that; and before a commit, its offset is marked as the flow's own, and as not to be carried back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import msgspec

from mirrorless.chain.lane import Lane, by_topic
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import (
    Direction,
    OwnOffsets,
    TranslatedGroup,
    carried_over,
    here_and_there,
    left_at,
    offsets_to_commit,
)
from mirrorless.groups.clusters import DIRECTIONS, GroupSide, Sides
from mirrorless.groups.ownership import other, with_carried, with_own
from mirrorless.groups.state import CheckpointStore
from mirrorless.mm2.internal_records import within
from mirrorless.ports.kafka import GroupIsActive, GroupState, OffsetAndMetadata, TopicPartition
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope

EARLY_MS: Final = 500
"""A round that had less to do reaches its writes a little sooner after its start than the one before. It is not early:
without this, groups were seen to wait for twice the interval."""

FRESH_SECONDS: Final = 10.0
"""For which commits rest on what was read again before them."""

COMMIT_SECONDS: Final = 5.0
"""For one commit at most; it gets half of the time that is left of the lease at most. So one that is given up, and is
still under way, has as long again to arrive before another run commits."""

LEAST_SECONDS: Final = 3.0
"""With less time left of the lease, no commit is begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedGroup:
    """A translated group, with its members and commits on the other side as this round's writes leave them."""

    translated: TranslatedGroup
    active_there: bool
    """Whether it has members on the other side."""
    left_at: int | None
    """See `GroupCheckpoints.left_at`."""
    there: Mapping[Lane, OffsetAndMetadata]
    """Its commits on the other side."""
    echoes: Mapping[Lane, int] = field(default_factory=dict)
    """Offsets here that this round itself commits, coming from there: they are not carried back."""
    own: OwnOffsets = field(default_factory=dict)
    """Its offsets there that are this flow's, with those of this round."""

    @property
    def independent(self) -> bool:
        """Whether an offset of it on the target is not this flow's; the way back is that of a group's own reading."""
        return self.translated.direction == "forward" and any(
            lane in self.there and self.there[lane].offset not in self.own.get(lane, ())
            for lane in self.translated.offsets
        )

    @property
    def comparable(self) -> frozenset[Lane]:
        """The lanes on which an offset there beyond the one here means that records would be skipped.

        An offset that this round carries back from there is no sign of it; nor are offsets on the source that the group
        reached itself.
        """
        own_only = self.translated.direction == "reverse"
        return frozenset(
            lane
            for lane, committed in self.there.items()
            if lane not in self.echoes and not (own_only and committed.offset not in self.own.get(lane, ()))
        )

    def with_members(self) -> SyncedGroup:
        """The group, now that it has members on the other side."""
        return replace(self, active_there=True, left_at=None)

    def due(self) -> dict[Lane, OffsetAndMetadata]:
        """The offsets to commit on the other side, if the group has no members there."""
        if self.independent:
            return {}
        group = self.translated
        writes = offsets_to_commit(group.direction, group.offsets, group.previous, self.there)
        return {lane: offset for lane, offset in writes.items() if lane not in self.echoes}

    def carried(self) -> dict[Lane, int]:
        """See `GroupCheckpoints.carried`."""
        group = self.translated
        return carried_over(group.direction, group.offsets, group.previous, self.there) | dict(self.echoes)


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
    grace_ms: int
    """How long a group must have been without members on the other side."""
    left: set[tuple[Direction, str]] = field(default_factory=set)
    """The groups that a round had no time for: the next one begins with them, in the next run, too."""
    _done_at: int | None = None

    def sync(
        self,
        groups: Sequence[TranslatedGroup],
        states: Mapping[tuple[Direction, str], GroupState],
        report: RoundReport,
        deadline: Deadline,
    ) -> tuple[SyncedGroups, int]:
        """Commit where that is switched on and due. A side that does not answer goes into the report.

        Args:
            groups: of both directions.
            states: on the other side, where it answers.
            report: gets what went wrong.
            deadline: of the round.

        Returns:
            the groups as they stand after the commits, and the number of offsets committed.
        """
        now = self.clock()
        synced: SyncedGroups = {
            (key := (group.direction, group.name)): SyncedGroup(
                translated=group,
                active_there=states.get(key) == "active",
                left_at=left_at(group, states.get(key), now),
                there=group.there,
                own=group.own,
            )
            for group in groups
        }
        if self._done_at is not None and self.every_ms is not None and now < self._done_at + self.every_ms - EARLY_MS:
            return synced, 0
        self._done_at = now
        committed = 0
        for direction in filter(self.commits, DIRECTIONS):
            cluster = self.sides.there(direction)
            try:
                sync_one = partial(self._sync_one, direction, synced, report, deadline)
                synced, count = self.sides.call(cluster, sync_one, deadline)
            except Retriable as exc:
                report.troubles.append(f"group offsets wait on {cluster.alias}: {exc}")
            else:
                committed += count
        return synced, committed

    def waits(self, group: SyncedGroup) -> bool:
        """Whether offsets of it are due, and wait because its members on the other side have just left."""
        just_left = group.left_at is not None and not self._gone(group)
        return just_left and self.commits(group.translated.direction) and bool(group.due())

    def _gone(self, group: SyncedGroup) -> bool:
        """Whether it has had no members on the other side for long enough."""
        return group.left_at is not None and self.clock() >= group.left_at + self.grace_ms

    def commits(self, direction: Direction) -> bool:
        """Whether offsets are committed in this direction."""
        return self.every_ms is not None if direction == "forward" else self.reverse

    def _sync_one(
        self, direction: Direction, groups: SyncedGroups, report: RoundReport, lease: Deadline, deadline: Deadline
    ) -> tuple[SyncedGroups, int]:
        """One direction of `sync`. Args: lease: what is left of the round; deadline: for this cluster."""
        cluster = self.sides.there(direction)
        candidates = {
            name: group
            for (each, name), group in groups.items()
            if each == direction and self._gone(group) and group.due()
        }
        if not candidates:
            return groups, 0

        # 1. Read again. 2. Mark. 3. Commit, while what was read is fresh: a group may have come and gone since.
        stop = max(0.0, deadline() - FRESH_SECONDS)
        fresh = self._read_again(direction, cluster, candidates, deadline)
        writes = {name: due for name, group in fresh.items() if not group.active_there and (due := group.due())}
        results, count = {**groups, **{(direction, name): group for name, group in fresh.items()}}, 0
        results |= self._mark(direction, writes, results)

        order = sorted(writes, key=lambda name: ((direction, name) not in self.left, name))
        late: list[str] = []
        for number, name in enumerate(order):
            left = lease()
            if left <= LEAST_SECONDS or deadline() <= stop:
                late = order[number:]
                report.troubles.append(f"{cluster.alias}: {len(late)} groups wait for the next round, which has time")
                break
            group, due = results[direction, name], writes[name]
            try:
                cluster.groups.commit(
                    name,
                    {self._partition(direction, lane): offset for lane, offset in due.items()},
                    within(min(COMMIT_SECONDS, left / 2), deadline),
                )
            except GroupIsActive:
                # It got members after the second read: its own commits count from now on.
                results[direction, name] = group.with_members()
            except Retriable as exc:
                report.troubles.append(f"{cluster.alias}: the offsets of group {name} wait: {exc}")
            else:
                results[direction, name] = replace(group, there={**group.there, **due})
                count += len(due)
        self.left -= {(direction, name) for name in order}
        self.left |= {(direction, name) for name in late}
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
                fresh[name] = group.with_members()
            elif state == "absent" or name in committed:
                fresh[name] = replace(group, there=self._by_lane(direction, committed.get(name, {})))
        return fresh

    def _partition(self, direction: Direction, lane: Lane) -> TopicPartition:
        return self.scope.remote_partition(lane) if direction == "forward" else self.scope.source_partition(lane)

    def _by_lane(
        self, direction: Direction, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[Lane, OffsetAndMetadata]:
        return self.scope.on_target(offsets) if direction == "forward" else self.scope.on_source(offsets)

    def _mark(
        self, direction: Direction, writes: Writes, groups: SyncedGroups
    ) -> dict[tuple[Direction, str], SyncedGroup]:
        """Store, before anything is committed, that these offsets are the flow's own and not to be carried back.

        What is carried back to the source makes the group's offsets on the target the flow's own, too.

        Returns:
            the groups of both directions that the marks change.

        Raises:
            Retriable: the store does not answer.
        """
        back = other(direction)
        documents, changed = {}, {}
        for name, due in writes.items():
            group = groups[direction, name]
            own = dict(group.own)
            for lane, offset in due.items():
                before = group.there[lane].offset if lane in group.there else None
                own[lane] = with_own(own, lane, offset.offset, before=before)
            changed[direction, name] = replace(group, own=own)
            mine, others = self.store.expected(direction, name), self.store.expected(back, name)
            there = groups.get((back, name))
            if self.commits(back):
                echoes = {lane: offset.offset for lane, offset in due.items()}
                others = with_carried(others, echoes)
                there = there and replace(there, echoes=echoes)
            if direction == "reverse":
                known = there.own if there is not None else others.own_offsets(self.scope.flow)
                carried = dict(known)
                for lane in due:
                    here, _ = here_and_there(direction, group.translated.offsets[lane])
                    if here is not None:
                        carried[lane] = with_own(known, lane, here)
                others = msgspec.structs.replace(others, own=by_topic(carried))
                there = there and replace(there, own=carried)
            if there is not None:
                changed[back, name] = there
            for document in (msgspec.structs.replace(mine, own=by_topic(own)), others):
                documents[document.key] = document
        self.store.write(documents)
        return changed
