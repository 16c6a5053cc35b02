"""Where does every lane of a flow stand, by the chains, the source and the loss ledger? What `status` reads, and how.

The clusters may be silent: what they alone know is then None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from cli.deployment import DeployedFlows, Stores
from cli.groups_look import groups_of
from cli.lanes_found import lanes_with_a_chain
from cli.scheduled import tasks_of
from cli.source import SourceView
from cli.status_view import NEWEST_RUNS, FlowStatus, LaneStatus, TopicStatus
from cli.target import heartbeats_of
from mirrorless.filters import should_replicate
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import RUNNING, Head, LaneState
from mirrorless.ports.stores import Chains
from mirrorless.run import Run

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.offsets import Extent
    from mirrorless.config import Flow

READERS = 8
"""Lanes that are read side by side; fewer than the connections that a DynamoDB client keeps."""


def look_at(deployment: DeployedFlows, flow: FlowName) -> FlowStatus:
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
    deployment: DeployedFlows, flow: FlowName, stores: Stores, source: SourceView
) -> tuple[list[TopicStatus], tuple[str, ...]]:
    """Every topic with its lanes, and the patterns whose topics nobody could list."""
    configured = deployment.flow(flow)
    states = stores.states.noted(flow)
    stops = [lane for lane, state in states.items() if state.stop is not None]
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
        return _lane_status(lane, stores, extents.get(lane), states.get(lane, RUNNING))

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


def _lane_status(lane: Lane, stores: Stores, extent: Extent | None, state: LaneState) -> LaneStatus:
    head = stores.chains.heads([lane])[lane]
    return LaneStatus(
        lane=lane,
        head=head,
        source=extent,
        stop=state.stop,
        lease=state.lease,
        waiting=state.waiting,
        lost=sum(loss.next - loss.first for loss in stores.ledger.read(lane)),
        gaps=gaps_in_newest_runs(stores.chains, head, runs=NEWEST_RUNS),
    )


def _side_by_side(read: Callable[[Lane], LaneStatus], lanes: Sequence[Lane]) -> list[LaneStatus]:
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(read, lanes))


def _now() -> int:
    return time.time_ns() // 1_000_000
