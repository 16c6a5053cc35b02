"""One round of checkpoints: what each group has committed, where that is on the other side, and who is told.

    read      the groups' commits on both sides
    decide    where each place is on the other side                         group_offsets, translate
    write     checkpoints to their topics                                   checkpoints_to_emit
    write     offsets for groups that sleep on the other side               group_sync
    decide    how ready each group is to move                               readiness
    write     one document a group: the memory of the next round, and what the operator's command reads

A crash between two writes is harmless: a checkpoint is emitted again, an offset that is there already is not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import (
    Direction,
    GroupCheckpoints,
    GroupOffset,
    by_topic,
    carried_over,
    checkpoints_to_emit,
)
from mirrorless.groups.group_move import GroupSide, Moving, Sides, along
from mirrorless.groups.offset_translation import Found, GroupOffsets, Spot
from mirrorless.groups.readiness import Rereads, assess, found_by
from mirrorless.groups.state import CheckpointMemory
from mirrorless.groups.sync import GroupSync
from mirrorless.lane import Lane
from mirrorless.mm2.internal_topics import Ensured
from mirrorless.ports.groups import OffsetAndMetadata
from mirrorless.ports.kafka import Deadline, TopicPartition, Written
from mirrorless.scheduled.parallel_reads import side_by_side
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope

NAMED: Final = 3
"""Groups that a sentence names; the others are counted."""

GroupPositions = dict[str, dict[Lane, OffsetAndMetadata]]
"""What each group has committed, by lane."""


@dataclass(slots=True, kw_only=True)
class CheckpointRound:
    """The task `checkpoints` of one flow: checkpoints, group offsets both ways, readiness."""

    followed: FlowScope
    sides: Sides
    memory: CheckpointMemory
    offsets: GroupOffsets
    rereads: Rereads
    sync: GroupSync
    replication_factor: int
    """Of the checkpoints topics."""
    ensured: Ensured = field(default_factory=Ensured)

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """Do one round.

        Raises:
            Retriable: the target or a store does not answer.
        """
        if self.memory.load():
            self.offsets.forget()
            self.rereads.forget()

        # 1. The groups' commits, before anything else is read. Of a source that is gone the last known ones hold:
        #    groups go on moving over.
        on_source, on_target = self._committed(report, deadline)
        forward = self.memory.commits_on_source() if on_source is None else on_source

        # 2. Where that is on the other side.
        found = self.offsets.translate(_spots("forward", forward) | _spots("reverse", on_target), deadline)
        moving = [
            *self._moving("forward", forward, on_target, found),
            *self._moving("reverse", on_target, on_source or {}, found),
        ]

        # 3. Checkpoints.
        ways: list[Direction] = ["forward", "reverse"] if self.sync.reverse else ["forward"]
        report.figures["checkpoints-emitted"] = sum(self._emit(way, moving, report, deadline) for way in ways)

        # 4. Group offsets.
        self._see_members(moving, report, deadline)
        report.figures["offsets-committed"] = self.sync.sync(moving, report, deadline)

        # 5. Readiness, and the documents.
        documents = side_by_side(self._document, moving)
        self.memory.write({document.key: document for document in documents})
        answered: list[Direction] = ["reverse"] if on_source is None else ["forward", "reverse"]
        self.memory.drop_others({document.key for document in documents}, answered)
        _count(documents, report)

    def _committed(self, report: RoundReport, deadline: Deadline) -> tuple[GroupPositions | None, GroupPositions]:
        """What the groups have committed, on the source (None when it is silent) and on the target."""
        source, target = self.sides.source, self.sides.target
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.sides.ask, source, partial(self._commits, source, report), deadline)
            on_target = self._commits(target, report, deadline)
            by_lane = {name: self.followed.on_target(places) for name, places in on_target.items()}
            try:
                on_source = asked.result()
            except Retriable as exc:
                report.troubles.append(f"the groups of {source.alias} cannot be read: {exc}")
                return None, by_lane
        return {name: self.followed.on_source(places) for name, places in on_source.items()}, by_lane

    def _commits(
        self, cluster: GroupSide, report: RoundReport, deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        names = [name for name in cluster.groups.names(deadline) if self.followed.group(name)]
        found = cluster.groups.committed(names, deadline)
        if silent := [name for name in names if name not in found]:
            report.troubles.append(f"{cluster.alias}: the commits of {_named(silent)} cannot be read now")
        return found

    def _moving(
        self, direction: Direction, here: GroupPositions, there: GroupPositions, found: Mapping[Spot, Found]
    ) -> list[Moving]:
        """Every group that has committed on a lane of this flow."""
        groups = []
        for name, places in sorted(here.items()):
            if not places:
                continue
            offsets, ahead = {}, 0
            for lane, committed in places.items():
                at = found[direction, lane, committed.offset]
                if direction == "forward":
                    offsets[lane] = GroupOffset(committed.offset, at.offset, at.state, committed.metadata)
                    ahead += max(0, committed.offset - at.head.position)
                else:
                    offsets[lane] = GroupOffset(at.offset, committed.offset, at.state, committed.metadata)
            groups.append(
                Moving(
                    name=name,
                    direction=direction,
                    last=self.memory.get(direction, name),
                    offsets=offsets,
                    ahead=ahead,
                    there=dict(there.get(name, {})),
                    known_there=name in there,
                )
            )
        return groups

    def _emit(self, direction: Direction, moving: Iterable[Moving], report: RoundReport, deadline: Deadline) -> int:
        """Tell the checkpoints topic what is news; what cannot be told now is told in a later round."""
        cluster = self.sides.there(direction)
        topic = self.followed.policy.checkpoints_topic(self.sides.here(direction).alias)
        groups, now = along(direction, moving).values(), self.sides.clock()
        records: list[Written] = []
        for group in groups:
            news = checkpoints_to_emit(direction, group.name, group.offsets, group.last)
            for lane, checkpoint in news.items():
                there = self.followed.remote_topic(lane.topic) if direction == "forward" else lane.topic
                renamed = replace(checkpoint, topic=there)
                records.append((topic, renamed.key(), renamed.value(), now))

        def write(in_time: Deadline) -> None:
            self.ensured.ensure(
                cluster.topics, cluster.alias, topic, replication_factor=self.replication_factor, deadline=in_time
            )
            cluster.topics.write(records, in_time)

        if records:
            try:
                self.sides.ask(cluster, write, deadline)
            except Retriable as exc:
                self.ensured.forget(cluster.alias, topic)
                report.troubles.append(f"{len(records)} checkpoints wait, because {topic} cannot be written: {exc}")
                return 0
        for group in groups:
            group.told = True
        return len(records)

    def _see_members(self, moving: Iterable[Moving], report: RoundReport, deadline: Deadline) -> None:
        """Note which groups live on the other side already."""
        ways: tuple[Direction, ...] = ("forward", "reverse")
        for direction in ways:
            cluster = self.sides.there(direction)
            asked = {name: group for name, group in along(direction, moving).items() if group.known_there}
            if not asked:
                continue
            try:
                states = self.sides.ask(cluster, partial(cluster.groups.states, list(asked)), deadline)
            except Retriable as exc:
                if cluster is self.sides.target:
                    raise
                report.troubles.append(f"nobody knows which groups are at work on {cluster.alias}: {exc}")
                continue
            for name, group in asked.items():
                group.active_there = states.get(name) == "active"

    def _document(self, group: Moving) -> GroupCheckpoints:
        """What this round has found out about a group."""
        reread = 0
        if not group.active_there:
            reread = self.rereads.count(group.direction, group.name, group.offsets, group.there)
        carried = carried_over(group.direction, group.offsets, group.last, group.there)
        for lane, offset in group.echoes.items():
            carried.setdefault(lane.topic, {})[lane.partition] = offset
        return GroupCheckpoints(
            group=group.name,
            direction=group.direction,
            at=self.sides.clock(),
            readiness=assess(group.direction, group.offsets, active_there=group.active_there, reread=reread),
            offsets=by_topic(group.offsets),
            by=found_by(group.offsets, group.there),
            reread=reread,
            ahead=group.ahead,
            carried=carried,
            told=group.told,
        )


def _spots(direction: Direction, positions: GroupPositions) -> set[Spot]:
    return {(direction, lane, committed.offset) for places in positions.values() for lane, committed in places.items()}


def _count(documents: Iterable[GroupCheckpoints], report: RoundReport) -> None:
    """The figures that alarms and the operator look at: the way forward."""
    forward = [document for document in documents if document.direction == "forward"]
    not_ready = [document for document in forward if document.readiness not in {"ready", "active_on_target"}]
    report.figures["groups"] = len(forward)
    report.figures["groups-not-ready"] = len(not_ready)
    report.figures["reread-records-max"] = max((document.reread for document in forward), default=0)


def _named(groups: list[str]) -> str:
    """A few groups by name, the others counted."""
    more = f" and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
    return f"group{'s' if len(groups) > 1 else ''} {', '.join(groups[:NAMED])}{more}"
