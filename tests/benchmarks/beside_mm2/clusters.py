"""The clusters of all measurements: two real single-node Kafkas with the same properties."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from lab.servers.kafka_broker import KafkaBroker
from mirrorless.settings import Tables
from mirrorless.tables import definitions

PROPERTIES = {
    # What was measured is thrown away after each measurement, so that no disk and no page cache fills.
    "log.segment.delete.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
}
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client declares no types here

HEAP_MB = 1024
ANSWER_S = 20.0
AT_ONCE = 100
"""Topics that are created by one request."""
CREATED_S = 60.0
TOPIC = {"segment.bytes": str(64 * 2**20)}

ISOLATION = {True: IsolationLevel.READ_COMMITTED, False: IsolationLevel.READ_UNCOMMITTED}

NOT_YET = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._NOENT,  # the client found no leader of any partition
}
"""What a broker says of a partition that was created, or that it got back, a moment ago."""


QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""How a lab's Java starts quickly. In production it is compiled twice, and collected by several threads."""


class BenchBroker(KafkaBroker):
    """A broker that is compiled and collected as in production."""

    def _java_options(self) -> list[str]:
        return [option for option in super()._java_options() if option not in QUICK_START]


@dataclass(slots=True)
class Ground:
    """What all sides stand on. DynamoDB Local is there for Mirrorless alone."""

    folder: Path
    quick_start: bool = False
    """Whether Java is to start quickly instead of becoming fast."""
    replicas: int = 1
    """Of each remote topic, and so brokers of the target."""
    partitions: dict[str, int] = field(default_factory=dict)
    """Of the source topics."""
    source: KafkaCluster = field(init=False)
    target: KafkaCluster = field(init=False)
    dynamodb: DynamoDbLocal = field(init=False)
    source_admin: AdminClient = field(init=False)
    target_admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        """Choose addresses; nothing starts yet."""
        kind = KafkaBroker if self.quick_start else BenchBroker
        self.source, self.target = (
            KafkaCluster(
                alias=alias,
                folder=self.folder / alias,
                properties=PROPERTIES,
                heap_mb=HEAP_MB,
                kind=kind,
                brokers=brokers,
            )
            for alias, brokers in (("source", 1), ("target", self.replicas))
        )
        self.dynamodb = DynamoDbLocal(folder=self.folder / "dynamodb", in_memory=True)
        self.source_admin, self.target_admin = (_admin(cluster) for cluster in (self.source, self.target))

    @contextmanager
    def running(self) -> Iterator[Ground]:
        """Everything started, and stopped at the end.

        Raises:
            MissingTool: Java or Maven is not there.
            ServerFailed: a server does not become ready.
        """
        servers = (self.source, self.target, self.dynamodb)
        try:
            for server in servers:
                server.begin_start()
            for server in servers:
                server.wait_ready()
            client = self.dynamodb.client()
            for table in definitions(Tables()):
                client.create_table(**table.create_request())
            yield self
        finally:
            for server in servers:
                server.stop()

    def create(self, topics: Mapping[str, int]) -> None:
        """Create the source topics that are not there, with so many partitions."""
        self.partitions |= topics
        _create(self.source_admin, topics, replicas=1)

    def create_remote(self, topics: Mapping[str, int]) -> None:
        """The same on the target, as `refresh_topics` does for topics before they are read by a schedule."""
        _create(self.target_admin, topics, replicas=self.replicas)

    def ends(self, topic: str, *, committed: bool = True) -> dict[int, int]:
        """The end of each partition of a topic of the target, as a reader sees it; one that is not there is absent."""
        found = _ends_of(self.target_admin, [topic], committed=committed)
        return {partition: end for (_, partition), end in found.items()}

    def ends_of(self, topics: Collection[str]) -> dict[tuple[str, int], int]:
        """The same of many topics, by topic and partition, in two requests."""
        return _ends_of(self.target_admin, topics, committed=True)

    def drop(self, remote_topic: str) -> None:
        """Delete a topic of the target, if it is there."""
        if remote_topic in self.target_admin.list_topics(timeout=ANSWER_S).topics:
            self.target_admin.delete_topics([remote_topic])[remote_topic].result(ANSWER_S)

    def clear(self, topics: Collection[str], remote_topics: Collection[str]) -> None:
        """Throw the records of topics away, on both sides."""
        for admin, names in ((self.source_admin, topics), (self.target_admin, remote_topics)):
            whole = [
                TopicPartition(*place, end) for place, end in _ends_of(admin, names, committed=False).items() if end
            ]
            if whole:
                for future in admin.delete_records(whole).values():
                    future.result(ANSWER_S)


def _create(admin: AdminClient, topics: Mapping[str, int], *, replicas: int) -> None:
    there = admin.list_topics(timeout=ANSWER_S).topics
    wanted = [NewTopic(name, count, replicas, config=TOPIC) for name, count in topics.items() if name not in there]
    for some in (wanted[start : start + AT_ONCE] for start in range(0, len(wanted), AT_ONCE)):
        for future in admin.create_topics(some).values():
            future.result(CREATED_S)


def _ends_of(admin: AdminClient, topics: Collection[str], *, committed: bool) -> dict[tuple[str, int], int]:
    known = admin.list_topics(timeout=ANSWER_S).topics
    wanted = {
        TopicPartition(topic, partition): LATEST
        for topic in topics
        if topic in known
        for partition in known[topic].partitions
    }
    if not wanted:
        return {}
    answers = admin.list_offsets(wanted, isolation_level=ISOLATION[committed], request_timeout=ANSWER_S)
    ends = {}
    for place, future in answers.items():
        try:
            ends[place.topic, place.partition] = future.result(ANSWER_S).offset
        except KafkaException as exc:
            if exc.args[0].code() not in NOT_YET:
                raise
    return ends


def _admin(cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "reconnect.backoff.max.ms": 500, "log_level": 0})
