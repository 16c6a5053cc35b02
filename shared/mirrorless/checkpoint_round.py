"""One round of checkpoints: what each group has committed, where that is on the other side, and who is told.

    read      the groups' commits on both sides
    decide    where each place is on the other side                         group_offsets, translate
    write     checkpoints to their topics                                   checkpoints_to_emit
    write     offsets for groups that sleep on the other side               offsets_to_commit
    decide    how ready each group is to move                               readiness
    write     one document a group: the memory of the next round, and what the operator's command reads

Crashes between two writes are harmless: a checkpoint is emitted again, an offset that is there already is not written.
One mark is written before its commit: that what we commit on one side is no news for the way back. Read as news, it
could undo what an operator did to the group meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import msgspec

from mirrorless.checkpoints import (
    Direction,
    GroupCheckpoints,
    GroupOffset,
    by_topic,
    carried_over,
    checkpoints_to_emit,
    offsets_to_commit,
)
from mirrorless.documents import Documents
from mirrorless.errors import Retriable
from mirrorless.followed import Followed
from mirrorless.group_offsets import Found, GroupOffsets, Spot, side_by_side
from mirrorless.groups import Committed, GroupIsActive, Groups
from mirrorless.internal_topics import Ensured, InternalTopics, Patience, Written
from mirrorless.lane import Lane
from mirrorless.readiness import Rereads, assess, found_by
from mirrorless.rounds import Report
from mirrorless.target import Deadline

REMEMBER_MS: Final = 60_000
"""After this long a round reads everything anew: an operator may have reset a lane, another run may have written."""

KEPT_MS: Final = 7 * 86_400_000
"""How long the document of a group outlives the group: as long as Kafka keeps the offsets of one without members."""

NAMED: Final = 3
"""Groups that a sentence names; the others are counted."""

_T = TypeVar("_T")

Positions = dict[str, dict[Lane, Committed]]
"""What each group has committed, by lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One side of the flow."""

    alias: str
    groups: Groups
    topics: InternalTopics


@dataclass(slots=True, kw_only=True)
class Moving:
    """One group in one direction, during one round."""

    name: str
    direction: Direction
    last: GroupCheckpoints | None
    offsets: dict[Lane, GroupOffset]
    ahead: int
    there: dict[Lane, Committed]
    """What it has committed on the other side."""
    active_there: bool = False
    told: bool = False
    """Whether the checkpoints topic has been told all of it."""
    echoes: dict[Lane, int] = field(default_factory=dict)
    """Offsets here that we commit in this round, coming from there: no news."""

    def due(self) -> dict[Lane, Committed]:
        """What the group should be given there, if it sleeps there."""
        writes = offsets_to_commit(self.direction, self.offsets, self.last, self.there)
        return {lane: offset for lane, offset in writes.items() if lane not in self.echoes}


@dataclass(slots=True, kw_only=True)
class CheckpointRound:
    """The task `checkpoints` of one flow: checkpoints, group offsets both ways, readiness."""

    followed: Followed
    source: Cluster
    target: Cluster
    documents: Documents
    """The table of checkpoints."""
    offsets: GroupOffsets
    rereads: Rereads
    clock: Callable[[], int]
    """ms since the epoch."""
    replication_factor: int
    """Of the checkpoints topics."""
    sync_every_ms: int | None
    """How often sleeping groups get their offsets on the target; None for never."""
    reverse: bool
    """Whether groups of the target get theirs on the source, and their checkpoints too."""
    ensured: Ensured = field(default_factory=Ensured)
    _documents: dict[str, GroupCheckpoints] = field(default_factory=dict)
    _loaded_at: int = -REMEMBER_MS
    _synced_at: int | None = None
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        """Be ready to find the source silent."""
        self._patience = Patience(alias=self.source.alias, clock=self.clock)

    def act(self, report: Report, deadline: Deadline) -> None:
        """Do one round.

        Raises:
            Retriable: the target or a store does not answer.
        """
        self._load()

        # 1. The groups' commits, before anything else is read.
        on_source, on_target = self._committed(report, deadline)
        forward = self._last_known() if on_source is None else on_source

        # 2. Where that is on the other side.
        found = self.offsets.translate(_spots("forward", forward) | _spots("reverse", on_target), deadline)
        moving = [
            *self._moving("forward", forward, on_target, found),
            *self._moving("reverse", on_target, on_source or {}, found),
        ]

        # 3. Checkpoints.
        ways: list[Direction] = ["forward", "reverse"] if self.reverse else ["forward"]
        report.figures["checkpoints-emitted"] = sum(self._emit(way, moving, report, deadline) for way in ways)

        # 4. Group offsets.
        self._see_members(moving, report, deadline)
        report.figures["offsets-committed"] = self._sync(moving, report, deadline)

        # 5. Readiness, and the documents.
        _figures(self._store(moving, source_answered=on_source is not None), report)

    # Reading

    def _load(self) -> None:
        """Know what the round before knew."""
        now = self.clock()
        if now < self._loaded_at + REMEMBER_MS:
            return
        stored = [self.documents.read(self.followed.flow, f"{way}/") for way in ("forward", "reverse")]
        self._documents = {
            key: msgspec.json.decode(text, type=GroupCheckpoints) for texts in stored for key, text in texts.items()
        }
        self.offsets.forget()
        self.rereads.forget()
        self._loaded_at = now

    def _committed(self, report: Report, deadline: Deadline) -> tuple[Positions | None, Positions]:
        """What the groups have committed, on the source (None when it is silent) and on the target."""
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(
                self._patience.ask, lambda in_time: self._commits(self.source, report, in_time), deadline
            )
            on_target = self._commits(self.target, report, deadline)
            try:
                on_source = asked.result()
            except Retriable as exc:
                # The last known commits still hold: groups go on moving over while their old cluster is gone.
                report.troubles.append(f"the groups of {self.source.alias} cannot be read: {exc}")
                return None, {name: self.followed.on_target(places) for name, places in on_target.items()}
        return (
            {name: self.followed.on_source(places) for name, places in on_source.items()},
            {name: self.followed.on_target(places) for name, places in on_target.items()},
        )

    def _commits(
        self, cluster: Cluster, report: Report, deadline: Deadline
    ) -> dict[str, dict[tuple[str, int], Committed]]:
        names = [name for name in cluster.groups.names(deadline) if self.followed.group(name)]
        found = cluster.groups.committed(names, deadline)
        if silent := [name for name in names if name not in found]:
            report.troubles.append(f"{cluster.alias}: the commits of {_named(silent)} cannot be read now")
        return found

    def _last_known(self) -> Positions:
        """The commits on the source that the documents tell of."""
        return {
            document.group: {
                lane: Committed(offset.upstream, offset.metadata)
                for lane, offset in document.lanes(self.followed.flow)
                if offset.upstream is not None
            }
            for document in self._documents.values()
            if document.direction == "forward"
        }

    # Deciding

    def _moving(
        self, direction: Direction, here: Positions, there: Positions, found: Mapping[Spot, Found]
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
                    last=self._documents.get(f"{direction}/{name}"),
                    offsets=offsets,
                    ahead=ahead,
                    there=dict(there.get(name, {})),
                )
            )
        return groups

    # Writing checkpoints

    def _emit(self, direction: Direction, moving: Iterable[Moving], report: Report, deadline: Deadline) -> int:
        """Tell the checkpoints topic what is news; what cannot be told now is told in a later round."""
        forward = direction == "forward"
        cluster = self.target if forward else self.source
        topic = self.followed.policy.checkpoints_topic((self.source if forward else self.target).alias)
        now = self.clock()
        groups = [group for group in moving if group.direction == direction]
        records: list[Written] = []
        for group in groups:
            news = checkpoints_to_emit(direction, group.name, group.offsets, group.last)
            for lane, checkpoint in news.items():
                there = self.followed.remote_topic(lane.topic) if forward else lane.topic
                renamed = replace(checkpoint, topic=there)
                records.append((topic, renamed.key(), renamed.value(), now))

        def write(in_time: Deadline) -> None:
            self.ensured.ensure(
                cluster.topics, cluster.alias, topic, replication_factor=self.replication_factor, deadline=in_time
            )
            cluster.topics.write(records, in_time)

        if records:
            try:
                self._ask(cluster, write, deadline)
            except Retriable as exc:
                self.ensured.forget(cluster.alias, topic)
                report.troubles.append(f"{len(records)} checkpoints wait, because {topic} cannot be written: {exc}")
                return 0
        for group in groups:
            group.told = True
        return len(records)

    # Writing group offsets

    def _see_members(self, moving: Iterable[Moving], report: Report, deadline: Deadline) -> None:
        """Note which groups live on the other side already."""
        for direction, cluster in (("forward", self.target), ("reverse", self.source)):
            asked = {group.name: group for group in moving if group.direction == direction and group.there}
            if not asked:
                continue
            try:
                states = self._ask(cluster, partial(cluster.groups.states, list(asked)), deadline)
            except Retriable as exc:
                if cluster is self.target:
                    raise
                report.troubles.append(f"nobody knows which groups are at work on {cluster.alias}: {exc}")
                continue
            for name, group in asked.items():
                group.active_there = states.get(name) == "active"

    def _sync(self, moving: list[Moving], report: Report, deadline: Deadline) -> int:
        """Give sleeping groups their offsets, where that is switched on and due."""
        now, every = self.clock(), self.sync_every_ms
        ways: list[tuple[Direction, Cluster]] = [] if every is None else [("forward", self.target)]
        if self.reverse:
            ways.append(("reverse", self.source))
        if self._synced_at is not None and every is not None and now < self._synced_at + every:
            return 0
        self._synced_at = now
        committed = 0
        for direction, cluster in ways:
            try:
                sync = partial(self._sync_way, direction, cluster, moving, report)
                committed += self._ask(cluster, sync, deadline)
            except Retriable as exc:
                report.troubles.append(f"group offsets wait on {cluster.alias}: {exc}")
        return committed

    def _sync_way(
        self, direction: Direction, cluster: Cluster, moving: list[Moving], report: Report, deadline: Deadline
    ) -> int:
        asked = {
            group.name: group
            for group in moving
            if group.direction == direction and not group.active_there and group.due()
        }
        if not asked:
            return 0
        # What was read at the beginning of the round may be overtaken: a group that woke up, read on and fell asleep
        # again would be moved backwards.
        states = cluster.groups.states(asked, deadline)
        fresh = cluster.groups.committed([name for name in asked if states.get(name) == "empty"], deadline)
        writes: dict[str, dict[Lane, Committed]] = {}
        for name, group in asked.items():
            state = states.get(name)
            if state == "active":
                group.active_there = True
                continue
            if state == "empty":
                if name not in fresh:
                    continue  # it does not tell what it has, so nothing may be written over it
                group.there = self._at(direction, fresh[name])
            if due := group.due():
                writes[name] = due

        self._mark_echoes(direction, moving, writes)
        count = 0
        for name, due in writes.items():
            group = asked[name]
            place = self.followed.place_on_target if direction == "forward" else self.followed.place_on_source
            try:
                cluster.groups.commit(name, {place(lane): offset for lane, offset in due.items()}, deadline)
            except GroupIsActive:
                group.active_there = True
                continue
            except Retriable as exc:
                report.troubles.append(f"{cluster.alias}: the offsets of group {name} wait: {exc}")
                continue
            group.there |= due
            count += len(due)
        return count

    def _at(self, direction: Direction, places: Mapping[tuple[str, int], Committed]) -> dict[Lane, Committed]:
        return self.followed.on_target(places) if direction == "forward" else self.followed.on_source(places)

    def _mark_echoes(
        self, direction: Direction, moving: list[Moving], writes: Mapping[str, Mapping[Lane, Committed]]
    ) -> None:
        """Note, before anything is committed, that these offsets are no news for the way back."""
        if not self.reverse or self.sync_every_ms is None or not writes:
            return
        back: Direction = "reverse" if direction == "forward" else "forward"
        ways_back = {group.name: group for group in moving if group.direction == back}
        marked = {}
        for name, due in writes.items():
            key = f"{back}/{name}"
            known = self._documents.get(key) or GroupCheckpoints(
                group=name, direction=back, at=self.clock(), readiness="ready", offsets={}, told=False
            )
            carried = {topic: dict(partitions) for topic, partitions in known.carried.items()}
            for lane, offset in due.items():
                carried.setdefault(lane.topic, {})[lane.partition] = offset.offset
            marked[key] = msgspec.structs.replace(known, carried=carried)
            if name in ways_back:
                ways_back[name].last = marked[key]
                ways_back[name].echoes = {lane: offset.offset for lane, offset in due.items()}
        self._write(marked)

    # Remembering

    def _store(self, moving: list[Moving], *, source_answered: bool) -> list[GroupCheckpoints]:
        """Write the documents that have changed; those of groups that are long gone are deleted."""
        now = self.clock()
        rereads = side_by_side(self._reread, moving)
        current = {}
        for group, reread in zip(moving, rereads, strict=True):
            last = self._documents.get(f"{group.direction}/{group.name}")
            carried = carried_over(group.direction, group.offsets, last, group.there)
            for lane, offset in group.echoes.items():
                carried.setdefault(lane.topic, {})[lane.partition] = offset
            document = GroupCheckpoints(
                group=group.name,
                direction=group.direction,
                at=now,
                readiness=assess(group.direction, group.offsets, active_there=group.active_there, reread=reread),
                offsets=by_topic(group.offsets),
                by=found_by(group.offsets, group.there),
                reread=reread,
                ahead=group.ahead,
                carried=carried,
                told=group.told,
            )
            unchanged = last is not None and msgspec.structs.replace(document, at=last.at) == last
            current[document.key] = last if last is not None and unchanged else document
        self._write({key: document for key, document in current.items() if document is not self._documents.get(key)})
        for key, document in list(self._documents.items()):
            gone = key not in current and (source_answered or document.direction == "reverse")
            if gone and now - document.at > KEPT_MS:
                self.documents.delete(self.followed.flow, key)
                del self._documents[key]
        return list(current.values())

    def _reread(self, group: Moving) -> int:
        if group.active_there:
            return 0
        return self.rereads.count(group.direction, group.name, group.offsets, group.there)

    def _write(self, documents: Mapping[str, GroupCheckpoints]) -> None:
        if documents:
            self.documents.write(
                self.followed.flow, {key: msgspec.json.encode(document) for key, document in documents.items()}
            )
        self._documents |= documents

    def _ask(self, cluster: Cluster, call: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Call one side. The source is the one that may be gone while there is work to do on the other."""
        return self._patience.ask(call, deadline) if cluster is self.source else call(deadline)


def _spots(direction: Direction, positions: Positions) -> set[Spot]:
    return {(direction, lane, committed.offset) for places in positions.values() for lane, committed in places.items()}


def _figures(documents: Iterable[GroupCheckpoints], report: Report) -> None:
    """Count what alarms and the operator look at: the way forward."""
    forward = [document for document in documents if document.direction == "forward"]
    report.figures["groups"] = len(forward)
    report.figures["groups-not-ready"] = sum(
        document.readiness not in {"ready", "active_on_target"} for document in forward
    )
    report.figures["reread-records-max"] = max((document.reread for document in forward), default=0)


def _named(groups: list[str]) -> str:
    """A few groups by name, the others counted."""
    more = f" and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
    return f"group{'s' if len(groups) > 1 else ''} {', '.join(groups[:NAMED])}{more}"
