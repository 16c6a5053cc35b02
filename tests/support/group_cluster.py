"""Two clusters in memory for consumer groups: their offsets, the internal topics, and replicated lanes.

The doubles have state and behave as Kafka does where it matters: no commit for a group with members, a consumer's
position passes markers, and a cluster may stop answering.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.run import spans_of
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, document_key
from mirrorless.groups.clusters import GroupSide, Sides
from mirrorless.groups.round import CheckpointRound
from mirrorless.lanes.gaps import GapRange, Look
from mirrorless.mm2.internal_records import Checkpoint
from mirrorless.ports.kafka import GroupIsActive, GroupState, LogEnds, OffsetAndMetadata, TopicPartition, Written
from mirrorless.protocol.map_reads import MapReads
from mirrorless.scheduled.runner import RoundReport
from tests.support.chains import FLOW, MemoryChains, MemoryLaneStates, run
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_control, make_flow
from tests.support.memory_log import look_at

MARKER = -1
"""In a log: an offset without a record that a read_committed reader could see."""

MINUTE = 60.0

ORDERS, REMOTE = ("orders", 0), (f"{FLOW.source}.orders", 0)
"""The first partition of the topic, and its remote one."""


@dataclass
class MemoryGroups:
    """Implements `mirrorless.ports.kafka.Groups`; something may happen just before or after its calls."""

    offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    static: set[str] = field(default_factory=set)
    """Groups whose members are static."""
    mute: set[str] = field(default_factory=set)
    """Groups whose commits cannot be read."""
    silent: bool = False
    commits: list[tuple[str, TopicPartition, int | None, int]] = field(default_factory=list)
    """What was committed for others: group, topic-partition, the offset before, and after."""
    before_states: Callable[[], object] = lambda: None
    before_commit: Callable[[str, Deadline], object] = lambda _group, _deadline: None
    after_commit: Callable[[], object] = lambda: None

    def names(self, deadline: Deadline) -> list[str]:
        """See `Groups.names`."""
        self._answer()
        return sorted(self.offsets.keys() | self.members)

    def states(self, groups: Iterable[str], deadline: Deadline) -> dict[str, GroupState]:
        """See `Groups.states`."""
        self._answer()
        self.before_states()
        return {
            name: "active" if name in self.members else "empty" if name in self.offsets else "absent" for name in groups
        }

    def committed(
        self, groups: Iterable[str], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """See `Groups.committed`."""
        self._answer()
        return {name: dict(self.offsets.get(name, {})) for name in groups if name not in self.mute}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline) -> None:
        """See `Groups.commit`."""
        self._answer()
        self.before_commit(group, deadline)
        if group in self.members:
            raise GroupIsActive("only its members may commit", where=group)
        known = self.offsets.setdefault(group, {})
        for place, offset in offsets.items():
            before = known[place].offset if place in known else None
            self.commits.append((group, place, before, offset.offset))
            known[place] = offset
        self.after_commit()

    def put(self, group: str, place: TopicPartition, offset: int, metadata: str = "") -> None:
        """Commit as the group itself, or its operator."""
        self.offsets.setdefault(group, {})[place] = OffsetAndMetadata(offset, metadata)

    def _answer(self) -> None:
        if self.silent:
            raise Retriable("the cluster does not answer")


@dataclass(slots=True, kw_only=True)
class Deaf:
    """A cluster that takes connections and answers nothing, in the place of one of the doubles: each call waits."""

    clock: Callable[[float], None]
    """Lets so many seconds pass."""
    answers: Any = None
    """The double that answers all the same; None for nothing."""
    but: Collection[str] = ()
    """The calls that it does not answer; without any, none."""
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        """A call."""
        if self.answers is not None and name not in self.but:
            return getattr(self.answers, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            deadline: Deadline = kwargs.get("deadline") or args[-1]
            self.asked.append(name)
            self.clock(deadline())
            raise Retriable("the cluster does not answer")

        return call


@dataclass(slots=True)
class MemoryTopics:
    """Implements `mirrorless.ports.kafka.InternalTopics`."""

    created: dict[str, tuple[int, int, Mapping[str, str]]] = field(default_factory=dict)
    written: list[Written] = field(default_factory=list)
    logs: dict[TopicPartition, list[int]] = field(default_factory=dict)
    """Record identities and markers by topic-partition."""
    silent: bool = False
    refuses: bool = False
    """Whether it answers, but refuses writes."""
    looks: int = 0
    """The number of reads of its logs."""
    counts: dict[str, int] = field(default_factory=dict)
    """Partitions of topics, where they are few."""

    def ensure_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int,
        configs: Mapping[str, str],
        deadline: Deadline,
    ) -> None:
        """See `InternalTopics.ensure_topic`."""
        self._answer()
        self.created.setdefault(topic, (partitions, replication_factor, configs))

    def write(self, records: Sequence[Written], deadline: Deadline) -> None:
        """See `InternalTopics.write`."""
        self._answer()
        if self.refuses:
            raise Retriable("not authorized")
        assert all(topic in self.created for topic, *_ in records)
        self.written += records

    def ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, LogEnds]:
        """See `InternalTopics.ends`."""
        self._answer()
        return {place: (0, len(self.logs[place]), len(self.logs[place])) for place in set(places) if place in self.logs}

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """See `InternalTopics.partitions`."""
        self._answer()
        return dict.fromkeys(["orders", "payments", *(topic for topic, _ in self.logs)], 100) | self.counts

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> dict[TopicPartition, Look]:
        """See `LogLooks.look`."""
        self._answer()
        assert committed
        self.looks += 1
        found = {}
        for place, wanted in ranges.items():
            visible = (offset for offset, each in enumerate(self.logs[place]) if each != MARKER)
            found[place] = look_at(wanted, visible, len(self.logs[place]))
        return found

    def checkpoints(self, topic: str) -> list[Checkpoint]:
        """Every checkpoint written to a topic, in order."""
        return [Checkpoint.decode(key, value) for name, key, value, _ in self.written if name == topic]

    def _answer(self) -> None:
        if self.silent:
            raise Retriable("the cluster does not answer")


@dataclass(slots=True)
class TwoClusters:
    """The flow us-east->eu-west of topic `orders`, and its checkpoint round."""

    settings: FlowSettings
    source: MemoryGroups = field(default_factory=MemoryGroups)
    target: MemoryGroups = field(default_factory=MemoryGroups)
    source_topics: MemoryTopics = field(default_factory=MemoryTopics)
    target_topics: MemoryTopics = field(default_factory=MemoryTopics)
    chains: MemoryChains = field(default_factory=MemoryChains)
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    now: int = 1_000_000
    round: CheckpointRound = field(init=False)
    _identities: int = 0
    _idle_at: dict[Lane, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the first environment."""
        self.restart()

    def restart(self) -> None:
        """Another environment takes over: only the documents are kept."""
        self.round = CheckpointRound.of(
            self.settings,
            Sides(
                source=GroupSide(alias=FLOW.source, groups=self.source, topics=self.source_topics),
                target=GroupSide(alias=FLOW.target, groups=self.target, topics=self.target_topics),
                clock=lambda: self.now,
            ),
            self.documents,
            chains=MapReads(chains=self.chains, stops=self.states.read),
            source_log=self.source_topics,
        )

    def act(self) -> RoundReport:
        """One round, three seconds after the one before."""
        self.now += 3_000
        report, end = RoundReport(), self.now + int(MINUTE * 1000)
        self.round.act(report, lambda: (end - self.now) / 1000)
        return report

    def commit_and_act(self, upstream: int, metadata: str = "") -> RoundReport:
        """The group `shop` commits in the first lane on the source, and a round follows."""
        self.source.put("shop", ORDERS, upstream, metadata)
        return self.act()

    def silence_source(self, *, silent: bool = True) -> None:
        """Let the source refuse every call, or answer again."""
        self.source.silent = self.source_topics.silent = silent

    def deafen(self, *calls: str) -> Deaf:
        """Let the source take connections and answer nothing, or all but these calls about its logs."""

        def wait(seconds: float) -> None:
            self.now += int(seconds * 1000)

        deaf = Deaf(clock=wait, answers=self.source_topics if calls else None, but=calls)
        sides, translator = self.round.sides, self.round.translator
        sides.source = replace(sides.source, topics=deaf, groups=self.source if calls else deaf)
        translator.source_log = deaf
        return deaf

    # Records

    def lane(self, partition: int = 0, topic: str = "orders") -> Lane:
        """One of the flow's lanes."""
        return Lane(FLOW, topic, partition)

    def source_log(self, lane: Lane) -> list[int]:
        """The log on the source."""
        return self.source_topics.logs.setdefault((lane.topic, lane.partition), [])

    def target_log(self, lane: Lane) -> list[int]:
        """The log on the target."""
        return self.target_topics.logs.setdefault((f"{FLOW.source}.{lane.topic}", lane.partition), [])

    def produce(self, lane: Lane, *sizes: int) -> None:
        """Records on the source, in transactions of these sizes: each leaves a marker. A negative size leaves none."""
        log = self.source_log(lane)
        for size in sizes:
            log += self.new_identities(abs(size))
            if size >= 0:
                log.append(MARKER)

    def grow(self, *sizes: int) -> None:
        """More records of the first lane on both sides, event by event: a marker after each downstream."""
        for size in sizes:
            self.produce(self.lane(), -size)
            self.replicate(self.lane())

    def new_identities(self, number: int) -> range:
        """So many identities that no record has."""
        self._identities += number
        return range(self._identities - number, self._identities)

    def replicate(self, lane: Lane, records: int | None = None, *, aborted: int = 0, prepared: bool = False) -> None:
        """One event: up to so many records reach the target in one transaction, after an attempt that was aborted.

        `prepared` leaves the run in doubt; its records are visible.
        """
        source, target = self.source_log(lane), self.target_log(lane)
        if self.caught_up(lane):
            return
        position = self.chains.heads([lane])[lane].position
        waiting = [offset for offset in range(position, len(source)) if source[offset] != MARKER][:records]
        if not waiting:
            self._idle_at[lane] = self._sizes(lane)
            return
        target += [MARKER] * (aborted + 1 if aborted else 0)
        downstream = [len(target) + number for number in range(len(waiting))]
        target += [source[offset] for offset in waiting]
        target.append(MARKER)
        spans = [(span.upstream, span.downstream, span.length) for span in spans_of(waiting, downstream)]
        state = "prepared" if prepared else "committed"
        self.chains.prepare([run(position, waiting[-1] + 1, *spans, lane=lane, state=state)])  # type: ignore[arg-type]  # a literal by way of if

    def caught_up(self, lane: Lane) -> bool:
        """Whether an event found nothing to replicate, and neither the lane's log nor any chain has grown since."""
        return self._idle_at.get(lane) == self._sizes(lane)

    def _sizes(self, lane: Lane) -> tuple[int, int]:
        return len(self.source_log(lane)), len(self.chains.memory.entries)

    def read(
        self, side: MemoryGroups, group: str, lane: Lane, limit: int | None = None, *, past: bool = True
    ) -> list[int]:
        """Read as a member of a group, from its commit or from the beginning, and commit.

        Args:
            side: the cluster.
            group: whose member.
            lane: of the topic that is read there.
            limit: records at most.
            past: whether the position passes the markers behind the last record, as a fetch that holds them lets it.

        Returns:
            the identities of the records.
        """
        there = side is self.target
        log = self.target_log(lane) if there else self.source_log(lane)
        place = (f"{FLOW.source}.{lane.topic}" if there else lane.topic, lane.partition)
        known = side.offsets.get(group, {}).get(place)
        at = known.offset if known is not None else 0
        found: list[int] = []
        while at < len(log) and (limit is None or len(found) < limit):
            if log[at] != MARKER:
                found.append(log[at])
            at += 1
        while past and at < len(log) and log[at] == MARKER:
            at += 1
        side.put(group, place, at)
        return found

    # Results

    def document(self, group: str, direction: Direction = "forward") -> GroupCheckpoints:
        """The stored document of a group."""
        return msgspec.json.decode(
            self.documents.documents[FLOW, document_key(direction, group)], type=GroupCheckpoints
        )

    def checkpoints(self) -> list[tuple[str, str, int, int, int, str]]:
        """Every checkpoint on the target, as (group, topic, partition, upstream, downstream, metadata)."""
        return [_tuple(each) for each in self.target_topics.checkpoints(f"{FLOW.source}.checkpoints.internal")]

    def checkpoints_back(self) -> list[tuple[str, str, int, int, int, str]]:
        """The same on the source."""
        return [_tuple(each) for each in self.source_topics.checkpoints(f"{FLOW.target}.checkpoints.internal")]


def settings(
    *,
    sync: float | None = None,
    reverse: bool = False,
    topics: tuple[str, ...] = ("orders", "payments"),
    groups: tuple[str, ...] = (".*",),
    delivery: str = "exactly_once",
    start: str = "earliest",
    grace: float = 0,
) -> FlowSettings:
    """The schedule's input of the flow. Args: grace: seconds; groups come and go at once in most tests."""
    return make_control(
        *topics,
        flow=make_flow(delivery=delivery),
        start=start,
        groups=groups,
        sync_group_offsets_enabled=sync is not None,
        sync_group_offsets_interval_seconds=sync or 0,
        sync_group_offsets_reverse_enabled=reverse,
        group_grace_seconds=grace,
        checkpoints_topic_replication_factor=2,
    )


def _tuple(each: Checkpoint) -> tuple[str, str, int, int, int, str]:
    return each.group, each.topic, each.partition, each.upstream, each.downstream, each.metadata


def mirrored(*sizes: int, **options: Any) -> TwoClusters:
    """Two clusters with one lane, replicated event by event. Args: options: see `settings`."""
    world = TwoClusters(settings(**options))
    world.grow(*sizes)
    return world
