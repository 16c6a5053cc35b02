"""The state of a flow, of its topics, lanes and scheduled tasks, and how it is read from the stores and the clusters.

A cluster may be down: what it alone has is then None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from cli.clusters import ClusterView, HeartbeatTimes, heartbeats_of
from cli.deployment import DeployedFlows, LabMapping, Stores, TopicTrigger, TriggerOf, triggers_of
from cli.groups_view import groups_of
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head, Lease, Stop
from mirrorless.chain.run import DigestOf, Run
from mirrorless.clock import now_ms
from mirrorless.flow.filters import should_replicate
from mirrorless.flow.settings import FlowSettings
from mirrorless.flow.triggers import MAPPING
from mirrorless.groups.checkpoints import GroupCheckpoints
from mirrorless.ports.stores import StateStore, lanes_with_a_chain
from mirrorless.scheduled.functions import is_overdue, shard_task, task_intervals
from mirrorless.scheduled.runner import MINUTE, TaskReport
from mirrorless.scheduled.standby import RegionRuns, read_region_runs
from mirrorless.topics.pause import FlowPause, read_pause

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.offsets import Extent, OpenTransaction
    from mirrorless.config import Flow


HANGING_MS = 900_000
"""`transaction.max.timeout.ms` of brokers, by default: what is open for longer has no timeout that ends it."""

NEWEST_RUNS = 5
"""Runs of each lane that are searched for gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """One lane. None means not known, or nothing yet."""

    lane: Lane
    head: Head
    source: Extent | None
    stop: Stop | None
    lost: int
    """Upstream offsets in the loss ledger."""
    gaps: int
    """Upstream offsets in no span of the newest runs."""
    lease: Lease | None = None
    """A job's, ended or not."""
    waiting: int | None = None
    """The upstream offset of the batch that waits for a job."""
    lag_ms: int | None = None
    """Age of the oldest record that still waits; 0 when none does."""
    hidden_by: OpenTransaction | None = None
    """The transaction of another producer behind which all waits that is not replicated yet."""
    gone: bool = False
    """Whether the source's topic has no such partition any more: then nothing waits."""

    @property
    def lag(self) -> int | None:
        """Records that still wait, at most: transaction markers and aborted records count too."""
        if self.source is None:
            return 0 if self.gone else None
        return max(0, self.source.end - max(self.waits_from, self.source.start))

    @property
    def waits_from(self) -> int:
        """The upstream offset of the first record that waits: below the position where the source has other records."""
        position = self.head.position
        return position if self.stop is None else min(position, self.stop.upstream_offset)

    @property
    def overtaken(self) -> int:
        """Upstream offsets that the source's retention has removed before they were replicated."""
        if self.source is None or self.head == NEW_LANE:
            return 0
        return max(0, self.source.start - self.head.position)

    @property
    def shrunk(self) -> bool:
        """Whether the source ends below the position: it was re-created or truncated, and no event has shown it yet."""
        return self.source is not None and self.source.end < self.head.position

    @property
    def last_run_at(self) -> int | None:
        """When the newest run was settled, ms since the epoch."""
        return self.head.run.settled_at if self.head.run is not None else None

    @property
    def latency_ms(self) -> int | None:
        """From the writing of the newest record to its replication, in the newest run."""
        run = self.head.run
        if run is None or run.newest_timestamp < 0:
            return None
        return max(0, run.settled_at - run.newest_timestamp)

    @property
    def copied_by(self) -> DigestOf | None:
        """How the records of the newest run were copied; None where it has none."""
        run = self.head.run
        return run.digest_of if run is not None and run.records else None

    @property
    def passed_share(self) -> float | None:
        """The share of the newest run's bytes that were passed as they lay in the source's log; None by records."""
        run = self.head.run
        return run.passed_bytes / run.bytes if run is not None and run.digest_of == "batches" and run.bytes else None

    def leased(self, at: int) -> Lease | None:
        """The lease that excludes the lane's mapping at a moment, in ms since the epoch."""
        return self.lease if self.lease is not None and at < self.lease.until else None

    def waits_without_a_job(self, at: int) -> bool:
        """Whether a batch waits for a job at a moment, in ms since the epoch, and no job has leased the lane."""
        return self.waiting is not None and self.waiting > self.head.position and self.leased(at) is None

    def hangs(self, at: int) -> bool:
        """Whether a transaction has hidden what waits for longer than brokers let one live, by their default."""
        since = self.hidden_by.since if self.hidden_by is not None else None
        return since is not None and at - since > HANGING_MS

    @property
    def needs_operator(self) -> bool:
        """Whether waiting will not help, with or without a lease."""
        return self.stop is not None or self.overtaken > 0 or self.shrunk


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """One topic of a flow, with its lanes by partition."""

    topic: str
    remote_topic: str
    trigger: TopicTrigger
    mapping: LabMapping | None
    """The lab's event source mapping; None on AWS."""
    lanes: Sequence[LaneStatus]
    missing: bool = False
    """Whether the flow names it, and the source has no such topic."""

    @property
    def mapping_is_off(self) -> bool:
        """Whether the mapping exists and does not poll, and no schedule reads the topic."""
        off = self.mapping is not None and self.mapping.state in {"Disabled", "Disabling", "Deleted"}
        return off and self.trigger.now == MAPPING


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    """One flow."""

    flow: FlowName
    at: int
    """When it was read, ms since the epoch."""
    trouble: str
    """Why the source does not answer; empty when it does."""
    unlisted: Sequence[str]
    """Patterns whose topics could not be listed."""
    topics: Sequence[TopicStatus]
    heartbeats: HeartbeatTimes = field(default_factory=HeartbeatTimes)
    groups: Sequence[GroupCheckpoints] = ()
    tasks: Sequence[TaskStatus] = ()
    shards: Sequence[TaskStatus] = ()
    """The last runs that read scheduled topics."""
    pause: FlowPause = field(default_factory=FlowPause)
    """The operator's order to move no record."""
    regions: RegionRuns | None = None
    """The last runs of `control` at home and beside the tables; None for a flow without a standby."""
    stop: Stop | None = None
    """Of the whole flow."""


def read_flow(deployment: DeployedFlows, flow: FlowName) -> FlowStatus:
    """Read the state of one flow."""
    settings = deployment.looking(flow)
    # The target is read meanwhile, so that two clusters that do not answer cost one wait.
    with ThreadPoolExecutor(1) as target:
        heartbeats = target.submit(heartbeats_of, settings)
        stores, source = deployment.stores(flow), ClusterView.source(deployment, flow)
        trigger = triggers_of(settings, stores.documents)
        topics, unlisted = _topics(deployment, flow, stores, source, trigger)
        return FlowStatus(
            flow=flow,
            at=now_ms(),
            trouble=source.trouble,
            unlisted=unlisted,
            topics=topics,
            heartbeats=heartbeats.result(),
            groups=groups_of(stores.checkpoints, flow, "forward"),
            tasks=tasks_of(stores.documents, settings),
            shards=shards_of(stores.documents, deployment.flow(flow)),
            pause=read_pause(stores.documents, flow),
            regions=read_region_runs(stores.documents, flow) if settings.standby_region else None,
            stop=stores.states.flow_stop(flow),
        )


def _topics(
    deployment: DeployedFlows, flow: FlowName, stores: Stores, source: ClusterView, trigger: TriggerOf
) -> tuple[list[TopicStatus], tuple[str, ...]]:
    """Every topic with its lanes, and the patterns whose topics could not be listed."""
    configured = deployment.flow(flow)
    states = stores.states.noted(flow)
    stops = [lane for lane, state in states.items() if state.stop is not None]
    there = source.partitions()

    # Topics: named literally, mapped, with a stopped lane, or on the source and matched by a pattern.
    topics = {*configured.literal_topics, *deployment.mapped_topics(flow), *(lane.topic for lane in stops)}
    topics |= {topic for topic in there or () if _matches_pattern(configured, topic)}

    # Lanes: one for each partition of the source; where it does not answer, up to the highest with a chain or a stop.
    def count(topic: str) -> int:
        known = max((lane.partition + 1 for lane in stops if lane.topic == topic), default=0)
        if there is not None:
            return max(known, there.get(topic, 0))
        return max(known, lanes_with_a_chain(stores.chains, flow, topic))

    lanes = {topic: [Lane(flow, topic, partition) for partition in range(count(topic))] for topic in sorted(topics)}
    extents = source.extents(lane for each in lanes.values() for lane in each)

    all_lanes = [lane for each in lanes.values() for lane in each]
    # Of neighbours at once, which share a journal: a read for each of some hundred lanes takes seconds.
    heads = stores.chains.heads(all_lanes)
    runs = stores.chains.newest_runs(all_lanes, limit=NEWEST_RUNS)
    losses = stores.ledger.of_lanes(all_lanes)

    def status(lane: Lane) -> LaneStatus:
        state = states.get(lane, RUNNING)
        return LaneStatus(
            lane=lane,
            head=heads[lane],
            source=extents.get(lane),
            stop=state.stop,
            lease=state.lease,
            waiting=state.waiting,
            lost=sum(loss.next - loss.first for loss in losses[lane]),
            gaps=gaps_in(runs.get(lane, ())),
            gone=there is not None and 0 < there.get(lane.topic, 0) <= lane.partition,
        )

    every = [status(lane) for lane in all_lanes]
    by_lane = {status.lane: status for status in _with_age_of_waiting(every, source)}
    found = [
        TopicStatus(
            topic=topic,
            remote_topic=configured.remote_topic(topic),
            trigger=trigger(topic),
            mapping=deployment.mapping(flow, topic),
            lanes=[by_lane[lane] for lane in each],
            missing=there is not None and topic not in there and topic in configured.literal_topics,
        )
        for topic, each in lanes.items()
    ]
    return found, configured.topic_patterns if there is None else ()


def _with_age_of_waiting(every: Iterable[LaneStatus], source: ClusterView) -> list[LaneStatus]:
    """The same lanes, with the age of the oldest record that still waits, and what hides it.

    One consumer reads for all that lag; a record in an open transaction is one that waits.
    """
    every = list(every)
    behind = {status.lane: status.source for status in every if status.source is not None and status.lag}
    positions = {
        status.lane: max(status.waits_from, behind[status.lane].start) for status in every if status.lane in behind
    }
    opened = source.open_transactions({lane: extent.end for lane, extent in behind.items()})
    hidden = {lane: each for lane, each in opened.items() if each.offset <= positions[lane]}
    seen = source.oldest_waiting({lane: at for lane, at in positions.items() if lane not in hidden})
    oldest, at = seen | {lane: each.since for lane, each in hidden.items() if each.since is not None}, now_ms()

    def age(status: LaneStatus) -> int | None:
        if status.lag == 0:
            return 0
        if status.lane not in oldest:
            return None
        written = oldest[status.lane]
        return 0 if written is None else max(0, at - written)

    return [replace(status, lag_ms=age(status), hidden_by=hidden.get(status.lane)) for status in every]


def gaps_in(runs: Iterable[Run]) -> int:
    """Count the upstream offsets of runs that are in none of their spans, and that no rule has left out.

    Offsets before the first record of a lane's first run are not gaps: there was nothing to replicate, or the flow's
    `start` left it out.
    """
    return sum(after - first for run in runs for first, after in run.unfiltered_gaps if first > 0)


def _matches_pattern(flow: Flow, topic: str) -> bool:
    return bool(flow.topic_patterns) and should_replicate(
        topic, flow=flow.name, topics=flow.topics, policy=flow.policy, heartbeats=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """One task that the flow's settings switch on."""

    task: str
    every_seconds: float
    last: TaskReport | None
    """Its last report; None when it has never been done."""

    def overdue(self, now: int) -> bool:
        """Whether it has not been done for so long that waiting will not help. `now` in ms since the epoch."""
        if self.last is None:
            return False  # a new flow; the table shows `never`
        return is_overdue(self.task, self.every_seconds, self.last.ok_at, now)


def tasks_of(documents: StateStore, settings: FlowSettings) -> list[TaskStatus]:
    """Every task of a flow that its settings switch on, with its last report.

    Raises:
        Retriable: the store does not answer.
    """
    last = _last_reports(documents, settings.name)
    return [
        TaskStatus(task=task, every_seconds=seconds, last=last.get(task))
        for task, seconds in task_intervals(settings).items()
    ]


def shards_of(documents: StateStore, flow: Flow) -> list[TaskStatus]:
    """The shards of a flow's scheduled topics, each with the report of its last run; none without such topics.

    Raises:
        Retriable: the store does not answer.
    """
    if not flow.has_pull:
        return []
    schedule = flow.settings.schedule
    every = MINUTE if schedule.continuous else schedule.interval_seconds
    last = _last_reports(documents, flow.name)
    names = map(shard_task, range(schedule.shards))
    return [TaskStatus(task=name, every_seconds=every, last=last.get(name)) for name in names]


def _last_reports(documents: StateStore, flow: FlowName) -> dict[str, TaskReport]:
    stored = documents.read(flow, "task/").values()
    return {report.task: report for report in (msgspec.json.decode(text, type=TaskReport) for text in stored)}
