"""The topics of a reconcile on both sides: the tasks that they make, their ids, and their ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.clock import Deadline, deadline_in
from mirrorless.errors import ConfigurationError
from mirrorless.jobs.request import JobRequest
from mirrorless.lanes.gaps import cleanup_of
from mirrorless.ports.kafka import TopicPartition
from mirrorless.reconcile.outcome import LocalTopic
from mirrorless.reconcile.tasks import InspectTask, LaneInspection
from spark.jobs.reconcile.tasks import ends_of

ANSWER_SECONDS: Final = 30.0

LANES_OF_A_CALL: Final = 5_000

ROUND_TRIPS: Final = 3

_STAMPS: Final = (
    "the source topic stamps records itself (message.timestamp.type=LogAppendTime), so copies would have timestamps of "
    "their own: set it to CreateTime, reconcile, and set it back"
)


class ReconciledTopics:
    """The topics of one request on both sides: every partition of either side is a lane."""

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._source = KafkaTopics(request.flow.source, flow=request.flow.flow, role="reconcile")
        self._target = KafkaTopics(request.flow.target, flow=request.flow.flow, role="reconcile")

    def ids(self) -> dict[str, str]:
        """The ids of the topics that are there, by their places; see `mirrorless.jobs.topic_ids`.

        Raises:
            Retriable: a cluster does not answer.
        """
        flow, topics = self._request.flow, self._request.topics
        here = self._source.topic_ids(topics, _soon())
        there = self._target.topic_ids([flow.remote_topic(topic) for topic in topics], _soon())
        return {f"{flow.source.alias} {name}": found for name, found in here.items()} | {
            f"{flow.target.alias} {name}": found for name, found in there.items()
        }

    def places(self, topic: str) -> tuple[str, str]:
        """The places of a topic and its remote topic."""
        flow = self._request.flow
        return f"{flow.source.alias} {topic}", f"{flow.target.alias} {flow.remote_topic(topic)}"

    def tasks(
        self, ids: Mapping[str, str], *, files: str, count: bool
    ) -> tuple[list[InspectTask], list[LaneInspection]]:
        """The tasks, and the lanes that cannot be reconciled, with the reason.

        Args:
            ids: see `ids`.
            files: the run's folder.
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
                beyond = 0 < here.get(topic, 0) <= partition
                if not beyond and (why := not_reconciled(config)):
                    left_alone.append(
                        LaneInspection(topic=topic, partition=partition, remote_topic=remote, differs=why)
                    )
                    continue
                tasks.append(
                    InspectTask(
                        settings=flow,
                        topic=topic,
                        partition=partition,
                        remote_topic=remote,
                        compacts=cleanup_of(config).compacts,
                        topic_ids=" ".join(ids.get(place, "") for place in self.places(topic)),
                        files=files,
                        count=count or beyond,
                        source_partitions=here[topic] if beyond else None,
                    )
                )
        return tasks, left_alone

    def source_ends(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition of the source that is there.

        Raises:
            Retriable: the source does not answer.
        """
        found: dict[TopicPartition, int] = {}
        for first in range(0, len(places), LANES_OF_A_CALL):
            found |= self._source.ends(places[first:][:LANES_OF_A_CALL], _soon())
        return found

    def round_trip(self) -> float:
        """Seconds of one small request to the source: the quickest of some.

        Raises:
            Retriable: the source does not answer.
        """
        places = [(topic, 0) for topic in self._request.topics[:1]]
        found = []
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            self._source.ends(places, _soon())
            found.append(time.monotonic() - began)
        return min(found)

    def stable_ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The stable end of each partition of the source that has a leader.

        Raises:
            Retriable: the source does not answer.
        """
        flow = self._request.flow
        ends = ends_of(flow.source, flow.flow)(places, _soon())
        return {place: stable for place, (_, stable, _) in ends.items()}

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


def not_reconciled(config: Mapping[str, str | None]) -> str:
    """The reason why a topic of this configuration cannot take copies, and what to do; empty where it can."""
    return _STAMPS if config.get("message.timestamp.type") == "LogAppendTime" else ""


def _soon() -> Deadline:
    return deadline_in(ANSWER_SECONDS)
