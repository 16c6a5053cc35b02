"""The rights inside Kafka of who audits copies and comes from MirrorMaker 2: they are enough, and each is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from cli.copied_places import PlaceSearch
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.audits import audit_partition, audit_tasks
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.source_offsets import KafkaSourceOffsets
from mirrorless.clock import deadline_in
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.settings import Authentication, ClusterSettings, FlowSettings
from mirrorless.jobs.request import AuditOptions
from mirrorless.mm2.source_offsets import CONNECTOR, SourcePartition, encode_offset, offsets_topic
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.topics.acls import Acl
from tests.support.guarded_cluster import as_dummy
from tests.support.topics import create_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SIDES = ("us-east", "eu-west")
COMPARE = [(side, "TOPIC", "topic", operation) for side in SIDES for operation in ("READ", "DESCRIBE_CONFIGS")]
"""What each command needs: a side, a kind of resource, its name, and the operation. `READ` implies `DESCRIBE`."""

RIGHTS = {
    "audit": COMPARE,
    "plan": [*COMPARE, ("eu-west", "TOPIC", "offsets", "READ")],
    "take-over": [("us-east", "GROUP", "mapping", "READ"), ("us-east", "TOPIC", "topic", "READ")],
    "give-back": [("eu-west", "TOPIC", "offsets", "READ"), ("eu-west", "TOPIC", "offsets", "WRITE")],
}


@dataclass(frozen=True, slots=True)
class GuardedFlow:
    """A topic with its copy, and the offsets of MirrorMaker, none of which anybody may see."""

    clusters: dict[str, KafkaCluster]
    topic: str
    folder: Path

    def settings(self) -> FlowSettings:
        """The flow as the user `dummy` sees it, by clients of their own: warm ones keep what they were allowed."""
        proofs = {alias: str(self.folder / f"{alias}.properties") for alias in SIDES}
        for alias, path in proofs.items():
            login = "org.apache.kafka.common.security.plain.PlainLoginModule"
            lines = (
                f"bootstrap.servers={as_dummy(self.clusters[alias])['bootstrap.servers']}",
                "security.protocol=SASL_PLAINTEXT",
                "sasl.mechanism=PLAIN",
                f'sasl.jaas.config={login} required username="dummy" password="dummy";',
            )
            Path(path).write_text("\n".join(lines))
        source, target = (
            ClusterSettings(
                alias=alias,
                bootstrap=str(as_dummy(self.clusters[alias])["bootstrap.servers"]),
                authentication=Authentication(type="properties", secret=path),
                region=uuid4().hex,
            )
            for alias, path in proofs.items()
        )
        return FlowSettings(flow="->".join(SIDES), source=source, target=target, topics=(self.topic,))

    def acl(self, right: tuple[str, str, str, str], principal: str = "User:dummy") -> tuple[str, Acl]:
        """The side of a right, and its ACL."""
        side, kind, name, operation = right
        names = {
            "topic": self.topic if side == SIDES[0] else f"us-east.{self.topic}",
            "offsets": offsets_topic("us-east"),
            "mapping": self.settings().consumer_group(self.topic),
        }
        return side, Acl(kind, "LITERAL", names.get(name, name), principal, "*", "ALLOW", operation)

    def acls(self, side: str) -> KafkaAcls:
        """One cluster's, by a super user."""
        return KafkaAcls(ClusterSettings(alias=side, bootstrap=self.clusters[side].bootstrap), flow="test")

    def give(self, right: tuple[str, str, str, str], principal: str = "User:dummy") -> None:
        """Give a right, and wait until the cluster knows it."""
        side, acl = self.acl(right, principal)
        assert self.acls(side).create([acl], deadline_in(20)) == {}
        eventually(lambda: acl in (self.acls(side).read(deadline_in(20)) or ()), "the cluster knows the right")

    def take(self, right: tuple[str, str, str, str]) -> None:
        """Take it back."""
        side, acl = self.acl(right)
        assert self.acls(side).delete([acl], deadline_in(20)) == {}
        eventually(lambda: acl not in (self.acls(side).read(deadline_in(20)) or ()), "the cluster has forgotten it")

    # What commands do inside Kafka. Whether MirrorMaker's workers are gone is asked by our own client.

    def audit(self) -> None:
        """`mirrorless audit`."""
        flow = self.settings()
        options = AuditOptions(copies={self.topic: f"us-east.{self.topic}"}, timestamps=False, wait_seconds=0)
        (task,) = audit_tasks(flow.source, flow.target, options)
        verdict = audit_partition(task, lambda *_, **__: None)
        assert (verdict.counts.proved, verdict.findings) == (1, [])

    def search(self) -> PlaceSearch:
        """Of all commands that come from MirrorMaker."""
        flow = self.settings()
        offsets = KafkaSourceOffsets(flow.target, offsets_topic("us-east"), flow=flow.flow)
        return PlaceSearch(settings=flow, offsets=offsets, connector=None, workers="", topic=self.topic)

    def plan(self) -> None:
        """`mirrorless migrate plan`."""
        search = self.search()
        places = search.places(search.said(), search.lanes(), {})
        if [each.found.place for each in places] != [1]:
            raise Retriable("topics that nobody may describe are not there")

    def take_over(self) -> None:
        """What `mirrorless migrate take-over` does beside its plan."""
        flow = self.settings()
        group, places = flow.consumer_group(self.topic), {(self.topic, 0): OffsetAndMetadata(1)}
        KafkaGroups(flow.source, flow=flow.flow).commit(group, places, deadline_in(20))

    def give_back(self) -> None:
        """What `mirrorless migrate give-back` does beside its plan."""
        offsets = self.search().offsets
        assert offsets is not None
        offsets.write({self.about: 0}, deadline_in(20), now=1)

    @property
    def about(self) -> SourcePartition:
        """The key of MirrorMaker's offset."""
        return SourcePartition(connector=CONNECTOR, cluster="us-east", topic=self.topic, partition=0)


@pytest.fixture
def flow(guarded: tuple[KafkaCluster, KafkaCluster], tmp_path: Path) -> Iterator[GuardedFlow]:
    clusters = dict(zip(SIDES, guarded, strict=True))
    flow = GuardedFlow(clusters, f"moved-{uuid4().hex[:8]}", tmp_path)
    source, target = guarded
    for cluster, topic, key, value in (
        (source, flow.topic, None, b"v"),
        (target, f"us-east.{flow.topic}", None, b"v"),
        (target, offsets_topic("us-east"), flow.about.key(), encode_offset(0)),
    ):
        create_topic(cluster.bootstrap, topic)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        producer.produce(topic, value, key, timestamp=1)
        assert producer.flush(20) == 0
    for right in {right for rights in RIGHTS.values() for right in rights}:
        flow.give(right, "User:nobody")  # from now on nobody else has it
    yield flow
    for side in SIDES:
        acls = flow.acls(side)
        assert acls.delete(acls.read(deadline_in(20)) or (), deadline_in(20)) == {}


def test_the_rights_of_who_comes_from_mirrormaker_are_enough_and_each_is_needed(flow: GuardedFlow) -> None:
    acts: dict[str, Callable[[], None]] = {
        "audit": flow.audit,
        "plan": flow.plan,
        "take-over": flow.take_over,
        "give-back": flow.give_back,
    }
    needless = []
    for command, act in acts.items():
        rights = RIGHTS[command]
        for right in rights:
            flow.give(right)
        act()
        for right in rights:
            flow.take(right)
            if _is_done(act):
                needless.append((command, right))
            flow.give(right)
        for right in rights:
            flow.take(right)

    assert needless == []


def _is_done(act: Callable[[], None]) -> bool:
    try:
        act()
    except MirrorlessError:
        return False
    return True
