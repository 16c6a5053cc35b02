"""Writes for which no time is left: none is begun, on a real cluster that would carry out each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.adapters.kafka.writer import KafkaWriter
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.ports.topics import ConfigChange, NewRemoteTopic
from mirrorless.records.record import Record
from mirrorless.topics.acls import Acl
from tests.support.readback import read_topic
from tests.support.topics import create_topic

pytestmark = pytest.mark.integration

FLOW = "us-east->eu-west"
ACL = Acl(
    resource="TOPIC",
    pattern="LITERAL",
    name="orders",
    principal="User:a",
    host="*",
    permission="ALLOW",
    operation="READ",
)


UNSENT = "no time was left, and nothing was sent"


def ample() -> float:
    return 30.0


def over() -> float:
    return -3.0


@dataclass
class Target:
    """A cluster with one topic, and warm clients of it."""

    bootstrap: str
    topic: str
    group: str = field(default_factory=lambda: f"billing-{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        """Make the clients, and let each do once what it is to do."""
        settings = ClusterSettings(alias="eu-west", bootstrap=self.bootstrap)
        self.groups = KafkaGroups(settings, flow=FLOW)
        self.records = KafkaRecords(settings, flow=FLOW, client_role="internal-topics")
        self.topics = KafkaTopics(settings, flow=FLOW, role="remote-topics")
        self.acls = KafkaAcls(settings, flow=FLOW)
        config = {"bootstrap.servers": self.bootstrap}
        self.writer = KafkaWriter(config, transactional_id="", deadline=ample)
        self.transactional = KafkaWriter(config, transactional_id=self.topic, deadline=ample)
        self.commit(ample)
        self.write_internal(ample)
        self.write(ample)
        self.transactional.write({(self.topic, 0): [_record()]}, ample)

    def commit(self, deadline: Deadline) -> None:
        """Commit for a group: 1, then 2."""
        self.groups.commit(self.group, {(self.topic, 0): OffsetAndMetadata(1 if deadline is ample else 2)}, deadline)

    def write_internal(self, deadline: Deadline) -> None:
        """A record of an internal topic."""
        self.records.write([(self.topic, b"k", b"v", 0)], deadline)

    def write(self, deadline: Deadline) -> None:
        """A record, without a transaction."""
        self.writer.write({(self.topic, 0): [_record()]}, deadline)

    def grow(self, deadline: Deadline) -> None:
        """Another partition."""
        self.topics.grow({self.topic: 2}, deadline)

    def alter(self, deadline: Deadline) -> None:
        """Another config."""
        self.topics.alter_configs({self.topic: ConfigChange(set={"retention.ms": "77"}, delete=())}, deadline)

    def create(self, deadline: Deadline) -> None:
        """Another topic."""
        new = NewRemoteTopic(name=f"{self.topic}-more", partitions=1, replication_factor=1, configs={})
        self.topics.create([new], deadline)

    def ensure(self, deadline: Deadline) -> None:
        """Another internal topic."""
        self.records.ensure_topic(f"{self.topic}-more", replication_factor=1, configs={}, deadline=deadline)

    def seen(self) -> tuple[object, ...]:
        """What the writes would change."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        topics = admin.list_topics(timeout=10).topics
        return (
            self.groups.committed([self.group], ample),
            len(read_topic(self.bootstrap, self.topic)[0]),
            len(topics[self.topic].partitions),
            f"{self.topic}-more" in topics,
            admin.describe_configs([resource])[resource].result(10)["retention.ms"].value,
        )


def _record() -> Record:
    return Record(offset=-1, timestamp=0, headers=[], key=b"k", value=b"v")


@pytest.fixture
def target(clusters: tuple[KafkaCluster, KafkaCluster]) -> Target:
    return Target(clusters[1].bootstrap, create_topic(clusters[1].bootstrap, f"orders-{uuid4().hex[:8]}"))


def test_no_write_is_begun_after_its_deadline(target: Target) -> None:
    before = target.seen()
    writes: dict[str, Callable[[Deadline], object]] = {
        "commit of offsets": target.commit,
        "internal record": target.write_internal,
        "record": target.write,
        "commit of a transaction": target.transactional.commit,
        "partitions": target.grow,
        "configs": target.alter,
        "topic": target.create,
        "internal topic": target.ensure,
        "ACL": lambda deadline: target.acls.create([ACL], deadline),
        "deletion of an ACL": lambda deadline: target.acls.delete([ACL], deadline),
    }
    begun = {what: answer for what, write in writes.items() if UNSENT not in (answer := _error(write))}

    target.transactional.abort(ample)
    assert begun == {}
    assert target.seen() == before


def _error(write: Callable[[Deadline], object]) -> str:
    with pytest.raises(Retriable) as raised:
        write(over)
    return str(raised.value)
