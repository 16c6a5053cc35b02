"""Writes for which no time is left: none is begun, on a real cluster that would carry out each."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

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
from tests.support.topics import admin_of, create_topic

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
RECORD = Record(offset=-1, timestamp=0, headers=[], key=b"k", value=b"v")


def ample() -> float:
    return 30.0


def over() -> float:
    return -3.0


def test_no_write_is_begun_after_its_deadline(clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    bootstrap = clusters[1].bootstrap
    topic = create_topic(bootstrap, f"orders-{uuid4().hex[:8]}")
    group, place, more = f"billing-{topic}", (topic, 0), f"{topic}-more"
    settings, config = ClusterSettings(alias="eu-west", bootstrap=bootstrap), {"bootstrap.servers": bootstrap}
    groups, acls = KafkaGroups(settings, flow=FLOW), KafkaAcls(settings, flow=FLOW)
    records = KafkaRecords(settings, flow=FLOW, client_role="internal-topics")
    topics = KafkaTopics(settings, flow=FLOW, role="remote-topics")
    writer = KafkaWriter(config, transactional_id="", deadline=ample)
    transactional = KafkaWriter(config, transactional_id=topic, deadline=ample)
    change = {topic: ConfigChange(set={"retention.ms": "77"}, delete=())}
    new = [NewRemoteTopic(name=more, partitions=1, replication_factor=1, configs={})]
    at = {ample: OffsetAndMetadata(1), over: OffsetAndMetadata(2)}
    warm: dict[str, Callable[[Deadline], object]] = {
        "commit of offsets": lambda deadline: groups.commit(group, {place: at[deadline]}, deadline),
        "internal record": lambda deadline: records.write([(topic, b"k", b"v", 0)], deadline),
        "record": lambda deadline: writer.write({place: [RECORD]}, deadline),
    }
    writes = warm | {
        "commit of a transaction": transactional.commit,
        "partitions": lambda deadline: topics.grow({topic: 2}, deadline),
        "configs": lambda deadline: topics.alter_configs(change, deadline),
        "topic": lambda deadline: topics.create(new, deadline),
        "internal topic": lambda deadline: records.ensure_topic(
            more, replication_factor=1, configs={}, deadline=deadline
        ),
        "ACL": lambda deadline: acls.create([ACL], deadline),
        "deletion of an ACL": lambda deadline: acls.delete([ACL], deadline),
    }
    for write in warm.values():
        write(ample)
    transactional.write({place: [RECORD]}, ample)

    def seen() -> tuple[object, ...]:
        """What the writes would change."""
        admin, resource = admin_of(bootstrap), ConfigResource(ResourceType.TOPIC, topic)
        there = admin.list_topics(timeout=10).topics
        return (
            groups.committed([group], ample),
            len(read_topic(bootstrap, topic)[0]),
            len(there[topic].partitions),
            more in there,
            admin.describe_configs([resource])[resource].result(10)["retention.ms"].value,
        )

    before = seen()
    begun = {what: answer for what, write in writes.items() if UNSENT not in (answer := _error(write))}

    transactional.abort(ample)
    assert begun == {}
    assert seen() == before


def _error(write: Callable[[Deadline], object]) -> str:
    with pytest.raises(Retriable) as raised:
        write(over)
    return str(raised.value)
