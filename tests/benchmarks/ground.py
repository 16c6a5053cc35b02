"""What scenarios stand on: two real clusters, DynamoDB Local with the tables, and a flow's settings between them."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaBroker, KafkaCluster
from lab.servers.process import running
from mirrorless.flow.naming import SPARK_MASTER_VARIABLE
from mirrorless.flow.settings import ClusterSettings, FlowSettings, Tables
from mirrorless.jobs.copy_task import CopyTask
from tests.support.flows import make_copy_task

REPOSITORY = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join((str(REPOSITORY / "shared"), str(REPOSITORY)))

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
CREATED_S = 120.0
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

Headers = list[tuple[str, str | bytes | None]]
Written = tuple[int, bytes | None, bytes | None, Headers]
"""A record for a producer: partition, key, value, headers."""


class BenchBroker(KafkaBroker):
    """A broker that is compiled and collected as in production."""

    def _java_options(self) -> list[str]:
        return [option for option in super()._java_options() if option not in QUICK_START]


def variables(dynamodb: DynamoDbLocal, slots: int = 2) -> dict[str, str]:
    """Of a process that uses these tables, and Spark on this machine."""
    return {
        SPARK_MASTER_VARIABLE: f"local[{slots},4]",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": PYTHONPATH,
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
        "AWS_ACCESS_KEY_ID": "lab",
        "AWS_SECRET_ACCESS_KEY": "lab",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@dataclass(slots=True)
class Ground:
    """Two clusters and DynamoDB Local."""

    folder: Path
    quick_start: bool = False
    """Whether Java is to start quickly instead of becoming fast."""
    replicas: int = 1
    """Of each remote topic, and so brokers of the target."""
    aliases: tuple[str, str] = ("source", "target")
    linked: str = ""
    """The alias of the cluster whose clients call through a link."""
    target_properties: Mapping[str, str] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    """Of the source topics."""
    source: KafkaCluster = field(init=False)
    target: KafkaCluster = field(init=False)
    dynamodb: DynamoDbLocal = field(init=False)
    source_admin: AdminClient = field(init=False)
    target_admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        """Choose addresses; nothing starts yet."""
        self.source, self.target = (
            KafkaCluster(
                alias=alias,
                folder=self.folder / alias,
                properties={**PROPERTIES, **more},
                heap_mb=HEAP_MB,
                kind=KafkaBroker if self.quick_start else BenchBroker,
                brokers=brokers,
                linked=alias == self.linked,
            )
            for alias, brokers, more in zip(self.aliases, (1, self.replicas), ({}, self.target_properties), strict=True)
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
        with running(self.source, self.target, self.dynamodb):
            self.dynamodb.create_tables(Tables())
            yield self

    def settings(self, **changes: Any) -> FlowSettings:
        """Of a flow from one cluster to the other."""
        source, target = (
            ClusterSettings(alias=each.alias, bootstrap=each.bootstrap, region="us-east-1")
            for each in (self.source, self.target)
        )
        flow = f"{source.alias}->{target.alias}"
        return FlowSettings(flow=flow, source=source, target=target, **{"replication_factor": 1, **changes})

    def variables(self, slots: int = 2) -> dict[str, str]:
        """See the function."""
        return variables(self.dynamodb, slots)

    def create(self, topics: Mapping[str, int], **config: str) -> None:
        """Create the source topics that are not there, with so many partitions. Underscores in configs are dots."""
        self.partitions |= topics
        _create(self.source_admin, topics, replicas=1, config=config)

    def create_remote(self, topics: Mapping[str, int], **config: str) -> None:
        """The same on the target, as `refresh_topics` does for topics before they are read by a schedule."""
        _create(self.target_admin, topics, replicas=self.replicas, config=config)

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


def copy_task(settings: FlowSettings, topic: str, partition: int, until: int, **more: Any) -> CopyTask:
    """The copy of a lane from its first record to an offset. Args: more: instead of what is usual, by name."""
    usual: dict[str, Any] = {"settings": settings, "write_topic": settings.remote_topic(topic)}
    return make_copy_task(partition, (0, until), topic=topic, **usual | more)


@contextmanager
def grounded(**options: Any) -> Iterator[Ground]:
    """A ground in a folder that is thrown away, whose Java starts quickly; this process gets its variables."""
    with (
        TemporaryDirectory(prefix="bench-") as folder,
        Ground(Path(folder), **{"quick_start": True, **options}).running() as ground,
    ):
        os.environ |= ground.variables()
        yield ground


def reader(bootstrap: str, **options: Any) -> Consumer:
    """A consumer of what is committed, which commits nothing. Underscores in options are dots."""
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    config |= {"isolation.level": "read_committed", "log_level": 0}
    return Consumer(config | {name.replace("_", "."): value for name, value in options.items()})


def produce(bootstrap: str, topic: str, records: Iterable[Written], **options: Any) -> None:
    """Write records; returns when all are acknowledged. Underscores in options are dots.

    Raises:
        RuntimeError: they were not acknowledged in time.
    """
    config = {"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000, "log_level": 0}
    config |= {"enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(config | {name.replace("_", "."): value for name, value in options.items()})
    for partition, key, value, headers in records:
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(CREATED_S):
        raise RuntimeError(f"{topic}: the records were not written")


def _create(admin: AdminClient, topics: Mapping[str, int], *, replicas: int, config: Mapping[str, str]) -> None:
    there = admin.list_topics(timeout=ANSWER_S).topics
    all_of = {**TOPIC, **{name.replace("_", "."): value for name, value in config.items()}}
    wanted = [NewTopic(name, count, replicas, config=all_of) for name, count in topics.items() if name not in there]
    for some in (wanted[start : start + AT_ONCE] for start in range(0, len(wanted), AT_ONCE)):
        for future in admin.create_topics(some, operation_timeout=60, request_timeout=90).values():
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
