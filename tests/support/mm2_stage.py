"""MM2's own integration scenarios need two clusters, applications that write and read, and a look at what MM2 writes.

`Side` is one cluster as an application sees it; `Pair` has both, with the flows between them on a running lab. Nothing
here depends on how the flows work: topics are read with plain consumers, checkpoints by their bytes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourceType,
)

from lab.cloud import Lab
from lab.esm.behaviour import LabBehaviour
from lab.servers.artifacts import DEFAULT_KAFKA
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.flow.settings import ClusterSettings
from mirrorless.mm2.internal_records import Checkpoint
from mirrorless.ports.kafka import OffsetAndMetadata
from tests.support.lane_stage import ORDERED
from tests.support.readback import Seen, await_settled, committed, read_topic
from tests.support.topics import create_topic
from tests.support.waiting import eventually

PARTITIONS, PER_PARTITION = 4, 25
"""100 records a topic, as in MM2's own tests."""

EVERY_TWO_SECONDS = {
    "window_seconds": 9,
    "refresh_topics_seconds": 2,
    "sync_topic_configs_seconds": 2,
    "checkpoints_seconds": 2,
    "heartbeats_seconds": 2,
    "idle_after_seconds": 3600.0,  # the stage outlives its tests' silences
    "group_grace_seconds": 0,  # MM2 has none
    "sync_topic_acls_seconds": None,
}
"""MM2's tests run everything each second; half as often takes half the CPU. No ACLs. A run that is killed
is replaced by the next one."""

SCHEDULE_SECONDS = 10

QUIET = {"log_level": 0}
LOOK_EVERY_S = 0.3

NOT_YET = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._NOENT,  # the client found no leader of any partition
}
"""Errors of a partition that was created a moment ago."""

Place = tuple[str, int]


@dataclass(slots=True)
class Side:
    """One cluster, as applications use it."""

    alias: str
    bootstrap: str
    admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        """Open the client that everything but records goes through."""
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    # Topics

    def create(self, topic: str, partitions: int = PARTITIONS, **configs: str) -> str:
        """Create a topic; underscores in config names are dots."""
        return create_topic(self.bootstrap, topic, partitions, **configs)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)
        eventually(lambda: self.partitions(topic) == partitions, f"{topic} has grown for the clients")

    def topics(self) -> set[str]:
        """Every topic there is."""
        return set(self.admin.list_topics(timeout=10).topics)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 where it is not there."""
        found = self.admin.list_topics(timeout=10).topics.get(topic)
        return len(found.partitions) if found else 0

    def overrides(self, topic: str) -> dict[str, str]:
        """What was set on a topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described = self.admin.describe_configs([resource])[resource].result(20)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: entry.value for name, entry in described.items() if entry.source == own}

    def set_config(self, topic: str, name: str, value: str | None) -> None:
        """Set a config on a topic; None takes it away."""
        how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name, value, incremental_operation=how)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(20)

    # Records

    def produce(
        self, topic: str, per_partition: int = PER_PARTITION, *, partitions: Sequence[int] | None = None
    ) -> int:
        """Write records, each with an identity of its own; how many.

        Even partitions are written plainly, odd ones in transactions of one record, whose markers leave gaps in the
        offsets (MM2 has a class of tests for either).
        """
        chosen = range(self.partitions(topic)) if partitions is None else partitions
        even, odd = ([partition for partition in chosen if partition % 2 == rest] for rest in (0, 1))
        if even:
            self._write(topic, even, per_partition)
        if odd:
            self._write(topic, odd, per_partition, transactional_id=f"app-{uuid4().hex}")
        return per_partition * len(chosen)

    def _write(self, topic: str, partitions: Sequence[int], records: int, *, transactional_id: str = "") -> None:
        options = {"transactional.id": transactional_id} if transactional_id else {}
        producer = Producer({"bootstrap.servers": self.bootstrap, **ORDERED, **options})
        if transactional_id:
            producer.init_transactions(20)
        for number in range(records):
            if transactional_id:
                producer.begin_transaction()
            for partition in partitions:
                producer.produce(topic, uuid4().bytes, b"key-%d" % number, partition)
            if transactional_id:
                producer.commit_transaction(20)
        assert producer.flush(20) == 0

    def records(self, topic: str, *, seconds: float = 20.0) -> dict[int, list[Seen]]:
        """Every visible record of a topic by partition."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                await_settled(self.bootstrap, topic)
                return read_topic(self.bootstrap, topic)
            except KafkaException as exc:
                if exc.args[0].code() not in NOT_YET or time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_EVERY_S)  # between two looks at a condition with a deadline

    def count(self, topic: str) -> int:
        """How many records are visible; 0 where the topic is not there."""
        return sum(map(len, self.records(topic).values())) if self.partitions(topic) else 0

    # Groups

    def consume(self, group: str, topics: Iterable[str], *, seconds: float = 60.0) -> list[bytes]:
        """Read with a group to the end of each partition, commit the positions, and leave; the values read."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                **QUIET,
            }
        )
        topics = list(topics)
        expected = {(topic, partition) for topic in topics for partition in range(self.partitions(topic))}
        values, at_end, deadline = [], set[Place](), time.monotonic() + seconds
        consumer.subscribe(topics)
        try:
            while at_end != expected:
                assert time.monotonic() < deadline, f"{group}: the ends of {expected - at_end} were not reached"
                for seen in consumer.consume(500, timeout=0.2):
                    place = _place(seen)
                    if seen.error() is None:
                        values.append(seen.value() or b"")
                        at_end.discard(place)
                    else:
                        at_end.add(place)
            consumer.commit(offsets=_positions(consumer), asynchronous=False)
        finally:
            consumer.close()
        return values

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Commit for a group without members."""
        groups = KafkaGroups(ClusterSettings(alias=self.alias, bootstrap=self.bootstrap), flow="test")
        groups.commit(group, {place: OffsetAndMetadata(offset) for place, offset in offsets.items()}, lambda: 20)

    def committed(self, group: str, topic: str) -> dict[Place, int]:
        """What a group has committed on a topic."""
        return {(topic, partition): offset for partition, offset in committed(self.bootstrap, group, topic).items()}

    # What MM2's clients read

    def checkpoints(self, of: str) -> list[Checkpoint]:
        """Every checkpoint about groups of the cluster `of`, in the order written."""
        topic = f"{of}.checkpoints.internal"
        if not self.partitions(topic):
            return []
        return [
            Checkpoint.decode(seen.content.key or b"", seen.content.value or b"") for seen in self.records(topic)[0]
        ]

    def await_checkpoints(self, of: str, group: str, expected: Mapping[Place, int]) -> None:
        """Wait until the newest checkpoints of a group are exactly these."""
        eventually(lambda: self.checkpointed(of, group) == expected, f"{group} has the checkpoints {expected}")

    def await_committed(self, group: str, places: Collection[Place]) -> None:
        """Wait until a group has offsets for all of these places."""
        for topic in {topic for topic, _ in places}:
            expected = {place for place in places if place[0] == topic}
            claim = partial(self._has_committed, group, topic, expected)
            eventually(claim, f"{group} has offsets for {expected}")

    def await_at_ends(self, group: str, topic: str) -> None:
        """Wait until a group stands behind the last record of each partition of a topic that gets no more records.

        A round that comes before the last records gives it offsets before them, and the next one brings it forward.
        """
        ends = self.ends(topic)
        eventually(lambda: self.committed(group, topic) == ends, f"{group} stands at {ends}")

    def _has_committed(self, group: str, topic: str, places: set[Place]) -> bool:
        return self.committed(group, topic).keys() >= places

    def await_topic(self, topic: str) -> None:
        """Wait until a topic is there."""
        eventually(lambda: topic in self.topics(), f"{topic} is on {self.alias}")

    def ends(self, topic: str) -> dict[Place, int]:
        """The offset behind the last record of each partition that has one."""
        return {(topic, p): each[-1].offset + 1 for p, each in self.records(topic).items() if each}

    def checkpointed(self, of: str, group: str) -> dict[Place, int]:
        """The newest checkpoint of each partition of a group: the downstream offset."""
        return {(each.topic, each.partition): each.downstream for each in self.checkpoints(of) if each.group == group}


@contextmanager
def servers(configuration: str, folder: Path) -> Iterator[Lab]:
    """A lab whose servers run and whose flows are still to be started; everything is stopped at the end."""
    lab = Lab(
        configuration=load(configuration),
        folder=folder,
        kafka_version=os.environ.get("KAFKA") or DEFAULT_KAFKA,
        control_overrides=EVERY_TWO_SECONDS,
        schedule_seconds=SCHEDULE_SECONDS,
        behaviour=LabBehaviour(metadata_refresh_s=1.0),
    )
    try:
        lab.start_servers()
        yield lab
    finally:
        lab.stop()


@dataclass(slots=True, kw_only=True)
class Pair:
    """Two clusters with flows between them."""

    lab: Lab
    primary: Side
    backup: Side

    @classmethod
    def of(cls, lab: Lab) -> Pair:
        """The lab's clusters `primary` and `backup`."""
        return cls(
            lab=lab,
            primary=Side("primary", lab.clusters["primary"].bootstrap),
            backup=Side("backup", lab.clusters["backup"].bootstrap),
        )

    def flow(self, name: str) -> Flow:
        """A flow by its name."""
        return next(flow for flow in self.lab.flows if str(flow.name) == name)


def fresh(what: str) -> str:
    """A name that no other test uses."""
    return f"{what}-{uuid4().hex[:8]}"


def values(side: Side, topic: str) -> Counter[bytes | None]:
    """The values of a topic with how often each is there."""
    return Counter(seen.content.value for each in side.records(topic).values() for seen in each)


def await_mirrored(source: Side, topic: str, target: Side, remote: str) -> None:
    """Wait until a remote topic has as many records as its source, and see that it has the same ones."""
    expected = source.count(topic)
    eventually(lambda: target.count(remote) >= expected, f"{remote} on {target.alias} has {expected} records")
    assert values(source, topic) == values(target, remote)
    assert {p: [s.content.value for s in each] for p, each in source.records(topic).items()} == {
        p: [s.content.value for s in each] for p, each in target.records(remote).items()
    }


def true_place(pair: Pair, topic: str, partition: int, upstream: int) -> int:
    """Where a record of `primary` stands on `backup`, found by its value: no map is used."""
    wanted = next(s.content.value for s in pair.primary.records(topic)[partition] if s.offset >= upstream)
    there = pair.backup.records(f"primary.{topic}")[partition]
    return next(seen.offset for seen in there if seen.content.value == wanted)


def assert_monotonic(checkpoints: Iterable[Checkpoint], group: str) -> None:
    """No checkpoint of a group that was not moved back goes back."""
    newest: dict[Place, Checkpoint] = {}
    for each in checkpoints:
        if each.group != group:
            continue
        before = newest.get((each.topic, each.partition), each)
        assert each.downstream >= before.downstream, (before, each)
        assert each.upstream >= before.upstream, (before, each)
        newest[each.topic, each.partition] = each
    assert newest, f"{group} has no checkpoint"


def _positions(consumer: Consumer) -> list[TopicPartition]:
    """Where a consumer stands that has reached the ends. Java's has that of an empty partition too."""
    known = []
    for at, before in zip(
        consumer.position(consumer.assignment()), consumer.committed(consumer.assignment(), timeout=10), strict=True
    ):
        if at.offset < 0:
            at.offset = before.offset if before.offset >= 0 else consumer.get_watermark_offsets(at, timeout=10)[0]
        known.append(at)
    return known


def _place(seen: Message) -> Place:
    topic, partition = seen.topic(), seen.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition
