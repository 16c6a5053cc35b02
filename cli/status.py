"""`mirrorless status [FLOW]`: where does every lane stand, how far behind is it, and does it need the operator?

Beside the lanes: when the last heartbeats came through, which consumer groups are ready to move, and how the scheduled
tasks go.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cli.arguments import add_deployment
from cli.deployment import Deployment, Stores
from cli.groups import groups_of, need_operator
from cli.lab_state import LabMapping
from cli.lanes import stops_of
from cli.scheduled import TaskStatus, tasks_of
from cli.source import SourceView
from cli.target import Heartbeats, heartbeats_of
from mirrorless.chain import NEW_LANE, Chains, Head, Stop
from mirrorless.filters import should_replicate
from mirrorless.groups.checkpoints import GroupCheckpoints
from mirrorless.lane import FlowName, Lane
from mirrorless.run import Run

if TYPE_CHECKING:
    from mirrorless.adapters.kafka_offsets import Extent
    from mirrorless.configuration import Flow

NEWEST_RUNS = 5
"""Runs of each lane that are looked at for gaps; each is one read."""

READERS = 8
"""Lanes that are read side by side; fewer than the connections that a DynamoDB client keeps."""

BLOCK = 16
"""Partitions that are tried at a time where nobody can tell how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """One lane as it is now. None means not known, or nothing yet."""

    lane: Lane
    head: Head
    source: Extent | None
    stop: Stop | None
    lost: int
    """Upstream offsets in the loss ledger."""
    gaps: int
    """Upstream offsets in no span of the newest runs."""
    lag_ms: int | None = None
    """Age of the oldest record that still waits; 0 when none does."""

    @property
    def lag(self) -> int | None:
        """Records that still wait, at most: transaction markers and aborted records count too."""
        if self.source is None:
            return None
        return max(0, self.source.end - max(self.head.position, self.source.start))

    @property
    def overtaken(self) -> int:
        """Upstream offsets that the source's retention has removed before they were replicated."""
        if self.source is None or self.head == NEW_LANE:
            return 0
        return max(0, self.source.start - self.head.position)

    @property
    def shrunk(self) -> bool:
        """Whether the source ends below the position: it was re-created or truncated, and has not yet contradicted."""
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
    def needs_operator(self) -> bool:
        """Whether waiting will not help."""
        return self.stop is not None or self.overtaken > 0 or self.shrunk


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """One topic of a flow, with its lanes by partition."""

    topic: str
    remote_topic: str
    mapping: LabMapping | None
    """The lab's event source mapping; None on AWS."""
    lanes: Sequence[LaneStatus]

    @property
    def mapping_is_off(self) -> bool:
        """Whether the mapping exists and does not poll."""
        return self.mapping is not None and self.mapping.state in {"Disabled", "Disabling", "Deleted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    """One flow."""

    flow: FlowName
    at: int
    """When it was looked at, ms since the epoch."""
    trouble: str
    """Why the source does not answer; empty when it does."""
    unlisted: Sequence[str]
    """Patterns whose topics nobody could list."""
    topics: Sequence[TopicStatus]
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    groups: Sequence[GroupCheckpoints] = ()
    tasks: Sequence[TaskStatus] = ()

    @property
    def needs_operator(self) -> bool:
        """Whether any lane, mapping, task, group or target partition does."""
        return (
            any(topic.mapping_is_off or any(lane.needs_operator for lane in topic.lanes) for topic in self.topics)
            or any(task.overdue(self.at) or task.stuck_partitions for task in self.tasks)
            or bool(need_operator(self.groups))
        )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `status`."""
    parser = subparsers.add_parser(
        "status",
        help="say where every flow stands: lag, latency, stopped lanes, losses, heartbeats, groups, tasks",
        epilog="Example: mirrorless status 'us-east->eu-west' --lanes",
    )
    parser.add_argument("flow", metavar="FLOW", nargs="?", help="'source->target', quoted (default: every flow)")
    parser.add_argument("--lanes", action="store_true", help="one line per partition, not only per topic")
    add_deployment(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look at everything. Exit code 1 where something needs the operator, see `FlowStatus.needs_operator`."""
    deployment = Deployment.of(arguments)
    flows = [look_at(deployment, flow) for flow in deployment.flow_names(arguments.flow)]
    if arguments.json:
        from cli.status_json import as_json  # noqa: PLC0415 -- people need no JSON

        print(json.dumps({"flows": [as_json(flow) for flow in flows]}, indent=2))
    else:
        from cli.status_table import show  # noqa: PLC0415 -- programs need no tables

        show(flows, by_lane=arguments.lanes)
    return int(any(flow.needs_operator for flow in flows))


def look_at(deployment: Deployment, flow: FlowName) -> FlowStatus:
    """Read everything about one flow."""
    settings = deployment.control_settings(flow)
    # The target is asked meanwhile, so that two silent clusters cost one wait.
    with ThreadPoolExecutor(1) as aside:
        heartbeats = aside.submit(heartbeats_of, settings)
        stores, source = deployment.stores(flow), SourceView.of(deployment, flow)
        topics, unlisted = _topics(deployment, flow, stores, source)
        return FlowStatus(
            flow=flow,
            at=_now(),
            trouble=source.trouble,
            unlisted=unlisted,
            topics=topics,
            heartbeats=heartbeats.result(),
            groups=groups_of(stores.checkpoints, flow, "forward"),
            tasks=tasks_of(stores.documents, settings),
        )


def _topics(
    deployment: Deployment, flow: FlowName, stores: Stores, source: SourceView
) -> tuple[list[TopicStatus], tuple[str, ...]]:
    """Every topic with its lanes, and the patterns whose topics nobody could list."""
    configured = deployment.flow(flow)
    stops = stops_of(stores, flow)
    there = source.partitions()

    # Which topics: those named, those mapped, those stopped, and those that the source has for a pattern.
    topics = {*configured.literal_topics, *deployment.mapped_topics(flow), *(lane.topic for lane in stops)}
    topics |= {topic for topic in there or () if _taken_by_pattern(configured, topic)}

    # Which lanes: as many as the source has partitions; where it is silent, as many as the map tells of.
    def count(topic: str) -> int:
        known = max((lane.partition + 1 for lane in stops if lane.topic == topic), default=0)
        if there is not None:
            return max(known, there.get(topic, 0))
        return max(known, lanes_with_a_chain(stores.chains, flow, topic))

    lanes = {topic: [Lane(flow, topic, partition) for partition in range(count(topic))] for topic in sorted(topics)}
    extents = source.extents(lane for each in lanes.values() for lane in each)

    def read(lane: Lane) -> LaneStatus:
        return _lane_status(lane, stores, extents.get(lane), stops.get(lane))

    every = _side_by_side(read, [lane for each in lanes.values() for lane in each])
    by_lane = {status.lane: status for status in _with_age_of_waiting(every, source)}
    found = [
        TopicStatus(
            topic=topic,
            remote_topic=configured.remote_topic(topic),
            mapping=deployment.mapping(flow, topic),
            lanes=[by_lane[lane] for lane in each],
        )
        for topic, each in lanes.items()
    ]
    return found, configured.topic_patterns if there is None else ()


def _with_age_of_waiting(every: Iterable[LaneStatus], source: SourceView) -> list[LaneStatus]:
    """The same lanes, with the age of the oldest record that still waits; one consumer asks for all that lag."""
    every = list(every)
    places = {
        status.lane: max(status.head.position, status.source.start)
        for status in every
        if status.source is not None and status.lag
    }
    oldest, now = source.oldest_waiting(places), _now()

    def age(status: LaneStatus) -> int | None:
        if status.lag == 0:
            return 0
        if status.lane not in oldest:
            return None
        written = oldest[status.lane]
        return 0 if written is None else max(0, now - written)

    return [replace(status, lag_ms=age(status)) for status in every]


def lanes_with_a_chain(chains: Chains, flow: FlowName, topic: str) -> int:
    """One more than the highest partition with a chain: tried block by block, until a whole block has none."""
    found = block = 0
    while True:
        lanes = [Lane(flow, topic, partition) for partition in range(block, block + BLOCK)]
        heads = chains.heads(lanes)
        replicated = [lane.partition for lane in lanes if heads[lane] != NEW_LANE]
        if not replicated:
            return found
        found, block = replicated[-1] + 1, block + BLOCK


def gaps_in_newest_runs(chains: Chains, head: Head, *, runs: int) -> int:
    """Count the upstream offsets that stand in no span of the lane's newest runs.

    What lies before the first record of a lane's first run is no gap: it was never there to be replicated, or the
    flow's `start` left it out.
    """
    gaps, link = 0, head.run
    for _ in range(runs):
        if link is None:
            break
        gaps += sum(after - first for first, after in link.gaps() if first > 0)
        if link.position == 0:
            break
        before = chains.at_or_before(link.lane, link.generation, link.position - 1)
        link = before if isinstance(before, Run) else None
    return gaps


def _taken_by_pattern(flow: Flow, topic: str) -> bool:
    return bool(flow.topic_patterns) and should_replicate(
        topic, flow=flow.name, topics=flow.topics, policy=flow.policy, heartbeats=False
    )


def _lane_status(lane: Lane, stores: Stores, extent: Extent | None, stop: Stop | None) -> LaneStatus:
    head = stores.chains.heads([lane])[lane]
    return LaneStatus(
        lane=lane,
        head=head,
        source=extent,
        stop=stop,
        lost=sum(loss.next - loss.first for loss in stores.ledger.read(lane)),
        gaps=gaps_in_newest_runs(stores.chains, head, runs=NEWEST_RUNS),
    )


def _side_by_side(read: Callable[[Lane], LaneStatus], lanes: Sequence[Lane]) -> list[LaneStatus]:
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(read, lanes))


def _now() -> int:
    return time.time_ns() // 1_000_000
