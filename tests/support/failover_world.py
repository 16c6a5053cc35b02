"""A flow that fails over, in memory: clusters, ACLs, stores and the reconcile job, and commands that can be killed.

Time passes only where a command waits. `meanwhile` is what the rest of the world does then: the flow replicates,
producers are stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Self

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Lease
from mirrorless.chain.run import Run, spans_of
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.failover.run import FailoverCommand
from mirrorless.failover.state import FailoverDocument, FailoverOrder, PlannedStep, StepName, StepResult, read_document
from mirrorless.failover.work import FailoverEffects, FailoverSide, ReconcileRun
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.round import CheckpointRound
from mirrorless.ports.kafka import LogEnds, OffsetAndMetadata, TopicPartition
from mirrorless.ports.stores import StateStore
from mirrorless.protocol.digest import digest
from mirrorless.reconcile.tasks import ReconciledLane
from mirrorless.records.record import Record
from mirrorless.records.record_batch import Codec, RecordBatch, batch_digest
from mirrorless.topics.acl_sync import AclSync
from mirrorless.topics.acls import MARK, Acl
from tests.support.acls import MemoryAcls
from tests.support.batches import batch_of
from tests.support.chains import FLOW, MemoryLaneStates, every_run, run
from tests.support.clusters import MemoryCluster, MemoryTarget
from tests.support.documents import MemoryDocuments
from tests.support.group_cluster import MARKER, MemoryGroups, MemoryTopics, TwoClusters, settings

TOPICS = {"orders": 2, "payments": 1}
APPLICATION = "User:application"

PLANNED, LOST, DRILL = (FailoverOrder(mode=mode) for mode in ("planned", "source-lost", "drill"))
WAITED = FailoverOrder(mode="planned", fencing="wait")


class CommandKilled(BaseException):
    """The command's process is gone."""


@dataclass(slots=True)
class Kill:
    """Ends a command behind the effect of one of its calls; whatever it calls later has no effect."""

    at: int
    calls: int = 0
    dead: bool = False
    answer_lost: bool = False
    """Whether only the answer to that call is lost, and the command lives on."""

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that may be the last one."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise CommandKilled
            self.calls += 1
            result = call(*args, **kwargs)
            if self.calls == self.at:
                if self.answer_lost:
                    raise Retriable("the answer was lost")
                self.dead = True
                raise CommandKilled
            return result

        return wrapped

    def object(self, inner: Any) -> Any:
        """An object all of whose methods are such calls."""
        return _Mortal(inner, self)


class _Mortal:
    def __init__(self, inner: Any, kill: Kill) -> None:
        self._inner, self._kill = inner, kill

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._kill.around(found) if callable(found) else found


@dataclass(slots=True)
class MemoryReconcile:
    """Implements `ReconcileJobs`: copies back what only the target has, names orphans, and joins both to the chain.

    A run inspects both sides when it is started, and copies when it has been asked for its state often enough.
    """

    world: FailoverWorld
    runs: dict[str, ReconcileRun] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    excluded: list[Sequence[str]] = field(default_factory=list)
    failures: int = 0
    """Of the next runs."""
    lasts: int = 1
    """For so many questions."""
    _asked: int = 0
    left: list[dict[str, Any]] = field(default_factory=list)
    """Lanes of partitions that the source does not have, as a report has them."""
    _ends: dict[Lane, tuple[int, int]] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=count)

    def new_id(self) -> str:
        """See `ReconcileJobs.new_id`."""
        return f"reconcile-{next(self._ids)}"

    def start(self, run_id: str, *, topics: Sequence[str], groups_exclude: Sequence[str]) -> None:
        """See `ReconcileJobs.start`."""
        assert self.world.states.flow_stops, "the flow is stopped until its lanes are reconciled"
        assert not self.world.is_closed(), "the job writes to the source's topics"
        until = self.world.clusters.now + 300_000
        for lane in self.world.lanes:
            self.world.states.take(lane, Lease(holder=run_id, until=until), now=self.world.clusters.now)
        self.started.append(run_id)
        self.excluded.append(groups_exclude)
        if self.failures:
            self.failures -= 1  # its leases stay: it was killed
            self.runs[run_id] = ReconcileRun(state="failed", error="a broker did not answer")
            return
        assert set(topics) == set(self.world.topics)
        clusters = self.world.clusters
        self._ends = {
            lane: (len(clusters.source_log(lane)), len(clusters.target_log(lane))) for lane in self.world.lanes
        }
        self.runs[run_id], self._asked = ReconcileRun(state="running", phase="look"), 0

    def inspect(self, run_id: str) -> ReconcileRun:
        """See `ReconcileJobs.inspect`."""
        found = self.runs.get(run_id, ReconcileRun(state="missing"))
        self._asked += found.state == "running"
        if found.state == "running" and self._asked >= self.lasts:
            lanes = [self._copied_back(lane, run_id) for lane in self.world.lanes]
            copied, orphans = (sum(each.get(name, 0) for each in lanes) for name in ("copied_back", "orphan_records"))
            totals = {"copied_back": copied, "copied_back_ratio": 0.0, "orphans": orphans}
            report = {"clean": not self.left, "totals": totals, "lanes": lanes + self.left, "groups": []}
            self.runs[run_id] = ReconcileRun(state="succeeded", place="jobs", report=report)
            for lane in self.world.lanes:
                self.world.states.let_go(lane, run_id)
        return found

    def _copied_back(self, lane: Lane, run_id: str) -> dict[str, Any]:
        """One lane, as the job does it; left alone where its source was written to meanwhile."""
        clusters, chains = self.world.clusters, self.world.clusters.chains
        source, target = clusters.source_log(lane), clusters.target_log(lane)
        source_end, target_end = self._ends[lane]
        position = chains.heads([lane])[lane].position
        runs = every_run(chains, lane)
        spans = [span for each in runs for span in each.spans]
        claimed = {at for span in spans for at in range(span.downstream, span.downstream + span.length)}
        new = [at for at in range(target_end) if target[at] != MARKER and at not in claimed]
        reconciled = bool(runs) and runs[-1].request.startswith("reconcile-")
        found = {
            "topic": lane.topic,
            "partition": lane.partition,
            "on_target": len(claimed) + len(new),
            "copied_back": 0,
            "policy": "report",
            "claimed_until": max(claimed, default=-1) + 1,
        }
        if len(source) > source_end and (new or not reconciled):
            return found | {"differs": "the source is written to"}
        copies = list(range(len(source), len(source) + len(new)))
        source += [target[at] for at in new]
        source += [MARKER] if new else []
        until = copies[-1] + 1 if copies else position if reconciled else max(position, source_end)
        orphans = [at for at in range(position, until) if source[at] != MARKER and at not in copies]
        back = ReconciledLane(forward=lane, remote_topic=f"{FLOW.source}.{lane.topic}", generation=0).back
        if new:
            begin = chains.heads([back])[back].position
            there = [(span.upstream, span.downstream, span.length) for span in spans_of(new, copies)]
            here = [(each[1], each[0], each[2]) for each in there]
            chains.prepare([run(begin, new[-1] + 1, *there, lane=back)])
            chains.prepare([replace(run(position, until, *here, lane=lane), request=run_id)])
        elif until > position:
            chains.prepare([replace(run(position, until, lane=lane), request=run_id)])
        return found | {"copied_back": len(new), "orphan_records": len(orphans)}


@dataclass(slots=True)
class MemoryShadows(MemoryGroups):
    """Implements `ShadowGroups` beside the groups of applications."""

    deleted: list[str] = field(default_factory=list)

    def delete(self, groups: Iterable[str], deadline: Deadline) -> None:
        """See `ShadowGroups.delete`."""
        for group in groups:
            self.deleted.append(group)
            self.offsets.pop(group, None)


@dataclass(slots=True)
class MemoryRanges:
    """Implements `RecordRanges` of one cluster."""

    world: FailoverWorld
    topics: MemoryTopics

    def ranges(
        self, wanted: Mapping[TopicPartition, tuple[int, int]], deadline: Deadline
    ) -> Iterator[tuple[TopicPartition, list[Record]]]:
        """See `RecordRanges.ranges`."""
        for place, (first, following) in wanted.items():
            log = self.topics.logs[place]
            yield place, [_record(at, log[at]) for at in range(first, min(following, len(log))) if log[at] != MARKER]

    def batches(
        self, wanted: Mapping[TopicPartition, tuple[int, int]], deadline: Deadline
    ) -> Iterator[tuple[TopicPartition, list[RecordBatch]]]:
        """See `RecordRanges.batches`."""
        for (topic, partition), (first, following) in wanted.items():
            lane = Lane(FLOW, topic.removeprefix(f"{FLOW.source}."), partition)
            runs = [link for link in self.world.clusters.chains.of(lane) if isinstance(link, Run)]
            some = [each for run in runs for each in self.world.batches_of(run)]
            yield (topic, partition), [each for each in some if first <= each.base_offset < following]


@dataclass(slots=True)
class FailoverWorld:
    """The flow us-east->eu-west of two topics, with groups, under ACLs."""

    settings: FlowSettings = field(default_factory=lambda: settings(topics=tuple(TOPICS)))
    topics: dict[str, int] = field(default_factory=lambda: dict(TOPICS))
    """Of the source, with their partitions."""
    clusters: TwoClusters = field(init=False)
    source_acls: MemoryAcls = field(default_factory=MemoryAcls)
    target_acls: MemoryAcls = field(default_factory=MemoryAcls)
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    shadows: MemoryShadows = field(default_factory=MemoryShadows)
    jobs: MemoryReconcile = field(init=False)
    meanwhile: Callable[[], None] = lambda: None
    """Called in each wait."""
    source_lost: bool = False
    open_transactions: set[TopicPartition] = field(default_factory=set)
    wider: dict[str, int] = field(default_factory=dict)
    """Partitions that a remote topic has beyond those of its topic."""
    codecs: dict[Lane, Codec] = field(default_factory=dict)
    """Of lanes that are copied by whole batches: of the batches on the target."""
    said: list[str] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        """Write the ACLs, and let the schedule stage them."""
        self.clusters = TwoClusters(self.settings, states=self.states)
        self.jobs = MemoryReconcile(self)
        self.states.store_now = lambda: self.clusters.now
        self.make_logs()
        granted = {
            Acl("TOPIC", "LITERAL", topic, APPLICATION, "*", "ALLOW", operation)
            for topic in TOPICS
            for operation in ("READ", "WRITE")
        }
        granted.add(Acl("GROUP", "LITERAL", "shop", APPLICATION, "*", "ALLOW", "READ"))
        self.source_acls.there = set(granted)
        self.acl_round()

    @classmethod
    def of(cls, records: int, **changes: Any) -> Self:
        """A world whose lanes have so many records each, all of them replicated. Args: changes: fields."""
        world = cls(**changes)
        world.produce(records)
        world.replicate()
        return world

    def make_logs(self) -> None:
        """Let both clusters have every partition of the topics."""
        for lane in self.lanes:
            self.clusters.source_log(lane)
            self.clusters.target_log(lane)

    @property
    def lanes(self) -> list[Lane]:
        """Every lane."""
        return [Lane(FLOW, topic, partition) for topic, number in self.topics.items() for partition in range(number)]

    def remote(self, lane: Lane) -> TopicPartition:
        """Where a lane's copies stand."""
        return f"{FLOW.source}.{lane.topic}", lane.partition

    def acl_round(self) -> None:
        """One round of the schedule's task."""
        sync = self._acl_sync()
        plan = sync.plan(lambda: 60.0)
        sync.carry_out(plan, lambda: 60.0)  # type: ignore[arg-type]  # both have an authorizer

    def is_closed(self) -> bool:
        """Whether producers are kept from writing on the source."""
        return any(acl.principal == MARK for acl in self.source_acls.there or ())

    # Records

    def produce(self, *sizes: int) -> None:
        """Records on the source, to each lane, in transactions; refused where the source denies writes."""
        if not self.is_closed():
            for lane in self.lanes:
                self.clusters.produce(lane, *sizes)

    def produce_on_target(self, *sizes: int) -> None:
        """Records on the remote topics, where the application may write there."""
        granted = self.target_acls.there
        for lane in self.lanes:
            remote = f"{FLOW.source}.{lane.topic}"
            write = Acl("TOPIC", "LITERAL", remote, APPLICATION, "*", "ALLOW", "WRITE")
            if granted is None or write in granted:
                log = self.clusters.target_log(lane)
                for size in sizes:
                    log += [*self.clusters.new_identities(size), MARKER]

    def replicate(self, records: int | None = None) -> None:
        """One event for each lane; nothing of a stopped flow. A lane with a codec is copied by whole batches."""
        if self.states.flow_stop(FLOW) is not None or self.source_lost:
            return
        for lane in self.lanes:
            if self.clusters.caught_up(lane):
                continue
            before = self.clusters.chains.heads([lane])[lane].run
            self.clusters.replicate(lane, records)
            link = self.clusters.chains.heads([lane])[lane].run
            if link is not None and link != before:
                self.clusters.chains.replace_link(link, self.proved(link))

    def proved(self, run: Run) -> Run:
        """A run with the digest of what the target has of it; of batches, with their newest time as well."""
        if run.lane in self.codecs:
            batches = self.batches_of(run)
            newest = max(each.max_timestamp for each in batches)
            return replace(run, digest_of="batches", digest=batch_digest(batches), newest_timestamp=newest)
        return replace(run, digest=digest([each for row in self._rows(run) for each in row]))

    def batches_of(self, run: Run) -> list[RecordBatch]:
        """A batch for each row of a run's records that is there."""
        return [batch_of(row, self.codecs[run.lane]) for row in self._rows(run)]

    def _rows(self, run: Run) -> list[list[Record]]:
        log = self.clusters.target_log(run.lane)
        rows = [
            [_record(at, log[at]) for at in range(first, min(first + span.length, len(log))) if log[at] != MARKER]
            for span in run.spans
            for first in [span.downstream]
        ]
        return [row for row in rows if row]

    def lose_source(self) -> None:
        """The source does not answer any more."""
        self.source_lost = True
        self.clusters.source.silent = self.clusters.source_topics.silent = True

    def bring_source_back(self) -> None:
        """It answers again."""
        self.source_lost = False
        self.clusters.source.silent = self.clusters.source_topics.silent = False

    # Commands

    def command(
        self, order: FailoverOrder | None, *, kill: Kill | None = None, force: bool = False, **changes: Any
    ) -> FailoverCommand:
        """A command of a new process. Args: kill: ends it; changes: of its effects."""
        effects = replace(self.effects(), **changes)
        return FailoverCommand(
            effects=effects if kill is None else mortal(effects, kill),
            order=order,
            force=force,
            say=self.said.append,
        )

    def carry_out(
        self,
        order: FailoverOrder | None,
        *,
        behind: Mapping[StepName, Callable[[], object]] | None = None,
        cancelled: Callable[[], bool] | None = None,
        **options: Any,
    ) -> FailoverDocument:
        """Prepare and execute. Args: behind: what happens each time that a step's result is stored."""
        command = self.command(order, **options)
        command.prepare()
        happens = dict(behind or {})

        def on_step(planned: PlannedStep, _: StepResult) -> None:
            happens.get(planned.step, lambda: None)()

        command.on_step, command.cancelled = on_step, cancelled or command.cancelled
        return command.execute()

    def killed_behind(self, order: FailoverOrder | None, step: StepName) -> None:
        """Carry out, and die once a step's result is stored."""

        def die() -> None:
            raise CommandKilled

        with suppress(CommandKilled):
            self.carry_out(order, behind={step: die})
            raise AssertionError(f"{step} was not done")

    def document(self, key: str = "failover") -> FailoverDocument | None:
        """The stored document."""
        return read_document(self.documents, FLOW, key)

    @property
    def stored(self) -> FailoverDocument:
        """The stored document of a failover that there is."""
        found = self.document()
        assert found is not None
        return found

    def effects(self) -> FailoverEffects:
        """Of a new process."""
        clusters = self.clusters
        return FailoverEffects(
            settings=self.settings,
            source=self._side(clusters.source, clusters.source_topics, self.source_acls, self.topics),
            target=self._side(
                clusters.target,
                clusters.target_topics,
                self.target_acls,
                {f"{FLOW.source}.{topic}": number + self.wider.get(topic, 0) for topic, number in self.topics.items()},
            ),
            replication=MemoryTarget(MemoryCluster(), "failover"),
            shadows=self.shadows,
            chains=clusters.chains,
            states=self.states,
            flow_stops=self.states,
            documents=self.documents,
            checkpoints=clusters.documents,
            rounds=self._rounds,
            counterpart=None,
            acl_sync=self._acl_sync(),
            acls_of_others=frozenset,
            jobs=self.jobs,
            clock=lambda: clusters.now,
            sleep=self._sleep,
            new_id=lambda: str(next(self._ids)),
        )

    def _rounds(self, _: StateStore, *, back: bool) -> CheckpointRound:
        self.clusters.restart()
        self.clusters.round.sync.every_ms = 0
        return self.clusters.round

    def _sleep(self, seconds: float) -> None:
        self.clusters.now += int(seconds * 1000)
        self.meanwhile()

    def _acl_sync(self) -> AclSync:
        return AclSync(
            settings=self.settings,
            source=self.source_acls,
            target=self.target_acls,
            topics=lambda _: self.topics,
            documents=self.documents,
        )

    def _side(
        self, groups: MemoryGroups, topics: MemoryTopics, acls: MemoryAcls, partitions: Mapping[str, int]
    ) -> FailoverSide:
        def ends(places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, LogEnds]:
            found = topics.ends(places, deadline)
            return {
                place: (start, end - 1 if place in self.open_transactions else end, end)
                for place, (start, _, end) in found.items()
            }

        def listed(_: Deadline) -> Mapping[str, int]:
            if topics.silent:
                raise Retriable("the cluster does not answer")
            return partitions

        return FailoverSide(
            answers=lambda: "it is silent" if topics.silent else "",
            partitions=listed,
            ends=ends,
            acls=acls,
            groups=groups,
            static_groups=lambda names, _: {name for name in names if name in groups.members & groups.static},
            records=MemoryRanges(self, topics),
            looks=topics,
        )


def mortal(effects: FailoverEffects, kill: Kill) -> FailoverEffects:
    """Effects of a process that is killed at one of its calls."""
    calls = ("answers", "partitions", "ends", "static_groups")
    source, target = (
        replace(
            side,
            acls=kill.object(side.acls),
            groups=kill.object(side.groups),
            **{name: kill.around(getattr(side, name)) for name in calls},  # type: ignore[arg-type]  # by their names
        )
        for side in (effects.source, effects.target)
    )
    objects = ("shadows", "flow_stops", "documents", "checkpoints", "jobs")
    changed = {name: kill.object(getattr(effects, name)) for name in objects}
    stores = {"source": source.acls, "target": target.acls, "documents": changed["documents"]}
    return replace(
        effects,
        **changed,
        source=source,
        target=target,
        rounds=lambda store, *, back: kill.object(effects.rounds(store, back=back)),
        acl_sync=replace(effects.acl_sync, **stores),
        sleep=kill.around(effects.sleep),
    )


def committed(groups: MemoryGroups, group: str) -> dict[TopicPartition, int]:
    """What a group has committed."""
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = groups.offsets.get(group, {})
    return {place: at.offset for place, at in offsets.items()}


def _record(offset: int, identity: int) -> Record:
    return Record(offset, 1_000 + identity, [], b"key", str(identity).encode())
