"""How far does a cluster's log reach, and how far did a group read it? Asked by operators, never by the forwarder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mirrorless.adapters.kafka_client import client_config, translated
from mirrorless.errors import Retriable
from mirrorless.settings import ClusterSettings

ANSWER_SECONDS = 5.0
"""How long an operator waits for a cluster that may be gone."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The upstream offsets [start, end) that a partition's log holds."""

    start: int
    end: int


class KafkaOffsets:
    """One cluster, asked for positions only. Every method raises Retriable when the cluster does not answer."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        self._cluster = cluster
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        quiet = {"log_level": 0, "socket.timeout.ms": int(ANSWER_SECONDS * 1000)}
        self._admin = AdminClient(client_config(cluster, f"{flow}|operator") | quiet)

    def partitions(self) -> dict[str, int]:
        """Every topic with its number of partitions."""
        with translated("list its topics", self._where):
            topics = self._admin.list_topics(timeout=ANSWER_SECONDS).topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def extents(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Extent]:
        """The extent of each partition; one that does not exist is left out."""
        wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
        if not wanted:
            return {}
        starts = self._list(wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # the client ships no type
        ends = self._list(wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # same
        return {key: Extent(starts[key], ends[key]) for key in starts if key in ends}

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The offset that a group has committed; None when it has not."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
        with translated(f"tell the offsets of group {group}", self._where):
            answer = self._admin.list_consumer_group_offsets([asked], request_timeout=ANSWER_SECONDS)
            found = answer[group].result(ANSWER_SECONDS).topic_partitions[0]
        return found.offset if found.offset >= 0 else None

    def _list(self, wanted: list[TopicPartition], spec: OffsetSpec) -> Mapping[tuple[str, int], int]:
        with translated("tell its offsets", self._where):
            futures = self._admin.list_offsets(dict.fromkeys(wanted, spec), request_timeout=ANSWER_SECONDS)
        offsets = {}
        for place, future in futures.items():
            try:
                offsets[place.topic, place.partition] = future.result(ANSWER_SECONDS).offset
            except KafkaException as exc:
                error = exc.args[0]
                if error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION}:  # noqa: SLF001 -- the client's public constants look so
                    continue
                raise Retriable(f"the cluster did not tell its offsets: {error.str()}", where=self._where) from exc
        return offsets
