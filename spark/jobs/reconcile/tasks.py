"""Spark tasks of the reconcile job, which inspect a lane or find its orphans; and the topics that they are made for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, Protocol, TypeVar
from uuid import uuid4

import msgspec

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.errors import ConfigurationError
from mirrorless.jobs.request import JobRequest
from mirrorless.lanes.gaps import cleanup_of
from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.reconcile.findings import InspectTask, LaneInspection, LaneOrphans, OrphanTask
from mirrorless.reconcile.inspect import SECONDS, LaneEnds, LaneView
from mirrorless.reconcile.outcome import LocalTopic
from mirrorless.settings import ClusterSettings, FlowSettings
from spark.jobs.clients import warm_log, warm_target
from spark.jobs.lane_tasks import TaskAttempt, result_of

ANSWER_SECONDS: Final = 30.0

LANES_OF_A_CALL: Final = 5_000

_STAMPS: Final = (
    "the source topic stamps records itself (message.timestamp.type=LogAppendTime), so copies would have timestamps of "
    "their own: set it to CreateTime, reconcile, and set it back"
)


def inspect_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `InspectTask`: from its JSON to that of a `LaneInspection`.

    Raises:
        Retriable: Spark tries again; at the last attempt the lane is left alone instead.
    """
    wanted = msgspec.json.decode(task, type=InspectTask)
    return msgspec.json.encode(
        result_of(
            lambda: lane_view(wanted.settings).inspect(wanted),
            attempt,
            failed=lambda error: LaneInspection(
                topic=wanted.topic, partition=wanted.partition, remote_topic=wanted.remote_topic, differs=error
            ),
        )
    )


def find_orphans(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `OrphanTask`: from its JSON to that of an `LaneOrphans`.

    Raises:
        Retriable: Spark tries again; at the last attempt the result has the error.
    """
    wanted = msgspec.json.decode(task, type=OrphanTask)
    return msgspec.json.encode(
        result_of(
            lambda: lane_view(wanted.settings).orphans(wanted),
            attempt,
            failed=lambda error: LaneOrphans(names=wanted.names, until=wanted.position, error=error),
        )
    )


def lane_view(settings: FlowSettings) -> LaneView:
    """The view of a flow's lanes, wired."""
    dynamodb = dynamodb_client(settings.target.region, settings.tables_role)
    return LaneView(
        chains=DynamoDbChains(dynamodb, settings.tables.offset_map, retention_days=settings.map_retention_days),
        states=DynamoDbLaneStates(dynamodb, settings.tables.lanes),
        target=warm_target(msgspec.json.encode(settings)),
        source_log=warm_log(msgspec.json.encode(settings.source), settings.flow),
        target_log=warm_log(msgspec.json.encode(settings.target), settings.flow),
        source_ends=_ends(settings.source, settings.flow),
        target_ends=_ends(settings.target, settings.flow),
    )


def _ends(cluster: ClusterSettings, flow: str) -> LaneEnds:
    records = _warm_records(msgspec.json.encode(cluster), flow)

    def ends(topic: str, partition: int) -> tuple[int, int, int] | None:
        return records.ends([(topic, partition)], lambda: SECONDS).get((topic, partition))

    return ends


@cache
def _warm_records(cluster: bytes, flow: str) -> KafkaRecords:
    """The process's admin client of a cluster, given as JSON."""
    settings = msgspec.json.decode(cluster, type=ClusterSettings)
    return KafkaRecords(settings, flow=flow, client_role=f"reconcile-{uuid4().hex[:8]}")


class InspectedLane(Protocol):
    """A lane with its inspection."""

    inspection: LaneInspection


L = TypeVar("L", bound=InspectedLane)


class ReconciledTopics:
    """The topics of one request on both sides: every partition of either side is a lane."""

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._source = KafkaTopics(request.flow.source, flow=request.flow.flow, role="reconcile")
        self._target = KafkaTopics(request.flow.target, flow=request.flow.flow, role="reconcile")

    def tasks(self, *, count: bool) -> tuple[list[InspectTask], list[LaneInspection]]:
        """The tasks, and the lanes that cannot be reconciled, with the reason.

        Args:
            count: see `InspectTask.count`.

        Raises:
            ConfigurationError: neither side has one of the topics.
            Retriable: a cluster does not answer.
        """
        request, flow = self._request, self._request.flow
        here, there = self._source.partitions(_soon()), self._target.partitions(_soon())
        configs, _ = self._source.configs([topic for topic in request.topics if topic in here], _soon())
        tasks, left_alone = [], []
        for topic in request.topics:
            remote = flow.remote_topic(topic)
            partitions = max(here.get(topic, 0), there.get(remote, 0))
            if not partitions:
                raise ConfigurationError(
                    f"neither {flow.source.alias} has a topic {topic} nor {flow.target.alias} a topic {remote}",
                    where=f"{flow.flow} {topic}",
                    hint="name topics as on the source",
                )
            config = {entry.name: entry.value for entry in configs.get(topic, [])}
            for partition in request.partitions.get(topic, tuple(range(partitions))):
                if config.get("message.timestamp.type") == "LogAppendTime":
                    left_alone.append(
                        LaneInspection(topic=topic, partition=partition, remote_topic=remote, differs=_STAMPS)
                    )
                    continue
                tasks.append(
                    InspectTask(
                        settings=flow,
                        topic=topic,
                        partition=partition,
                        remote_topic=remote,
                        compacts=cleanup_of(config).compacts,
                        count=count,
                    )
                )
        return tasks, left_alone

    def source_ends(self, lanes: Sequence[L]) -> Iterator[tuple[L, int]]:
        """The end of each lane's source, where it has one.

        Raises:
            Retriable: the source does not answer.
        """
        for first in range(0, len(lanes), LANES_OF_A_CALL):
            some = {
                (each.inspection.topic, each.inspection.partition): each for each in lanes[first:][:LANES_OF_A_CALL]
            }
            for place, end in self._source.ends(some, _soon()).items():
                yield some[place], end

    def stable_ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The stable end of each partition of the source that has a leader.

        Raises:
            Retriable: the source does not answer.
        """
        flow = self._request.flow
        records = _warm_records(msgspec.json.encode(flow.source), flow.flow)
        return {place: stable for place, (_, stable, _) in records.ends(places, _soon()).items()}

    def grew(self, inspection: LaneInspection) -> bool:
        """Whether the target's partition has grown since it was inspected."""
        place = (inspection.remote_topic, inspection.partition)
        return self._target.ends([place], _soon()).get(place, 0) > inspection.target.next

    def local(self, held_at: int | None) -> list[LocalTopic]:
        """The target's own topics with the names of the requested ones; none under `identity`.

        Args:
            held_at: ms since the epoch; None where the lanes were not held.
        """
        flow = self._request.flow
        there = self._target.partitions(_soon())
        found = []
        for topic in self._request.topics:
            if flow.remote_topic(topic) == topic or topic not in there:
                continue
            places = [(topic, partition) for partition in range(there[topic])]
            ends = self._target.ends(places, _soon())
            starts = self._target.offsets_at(places, 0, _soon())
            since = None
            if held_at is not None:
                at = self._target.offsets_at(places, held_at, _soon())
                since = sum(ends[place] - at[place] for place in ends if at.get(place, -1) >= 0)
            found.append(
                LocalTopic(
                    topic=topic,
                    offsets=sum(ends[place] - starts[place] for place in ends if starts.get(place, -1) >= 0),
                    since=since,
                )
            )
        return found


def _soon() -> Deadline:
    end = time.monotonic() + ANSWER_SECONDS
    return lambda: end - time.monotonic()
