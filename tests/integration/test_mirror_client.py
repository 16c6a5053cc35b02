"""MirrorMaker 2's own Java clients, `MirrorClient` and `RemoteClusterUtils`, on our clusters.

An application that was written for MM2 asks these before it fails over, and before it returns. What they should answer
is found by reading the records on both sides; nothing here asks our map.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from lab.cloud import Lab
from lab.esm.behaviour import LabBehaviour
from lab.servers.artifacts import DEFAULT_KAFKA, classpath, compiled, java_command, resolve
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.config.loading import load
from mirrorless.flow.settings import ClusterSettings
from mirrorless.mm2.internal_records import Checkpoint
from mirrorless.ports.kafka import OffsetAndMetadata
from tests.support.lane_stage import ORDERED
from tests.support.readback import LEADER_MOVES, Seen, await_settled, committed, read_topic
from tests.support.topics import admin_of, create_topic
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.java]

CLIENT = "4.1.1"
"""Of MM2's client; what it asks for has not changed since 2.4."""
JAVA = Path(__file__).parent.parent / "java"
PARTITIONS, RECORDS = 3, 20

CONFIGURATION = """
clusters:
  primary: {bootstrap.servers: primary.example.com:9092, region: us-east-1}
  backup: {bootstrap.servers: backup.example.com:9092, region: eu-west-1}
flows:
  primary->backup:
    topics: ['test-topic-.*']
    groups: ['consumer-group-.*']
    sync.group.offsets.enabled: true
    sync.group.offsets.reverse.enabled: true
    mapping: {mode: on-demand, maximum.batching.window.seconds: 0}
"""

EVERY_TWO_SECONDS = {
    "window_seconds": 9,
    "refresh_topics_interval_seconds": 2,
    "emit_checkpoints_interval_seconds": 2,
    "emit_heartbeats_interval_seconds": 2,
    "idle_after_seconds": 3600.0,  # the lab outlives its tests' silences
    "group_grace_seconds": 0,  # MM2 has none
    "sync_topic_acls_enabled": False,
}

NOT_YET = {*LEADER_MOVES, KafkaError.UNKNOWN_TOPIC_OR_PART}
"""Errors of a partition that was created a moment ago."""

Ask = Callable[..., dict[str, Any]]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Side:
    """One cluster, as applications use it: topics are read with plain consumers, checkpoints by their bytes."""

    alias: str
    bootstrap: str

    @property
    def admin(self) -> AdminClient:
        """The client for everything but records."""
        return admin_of(self.bootstrap)

    def topics(self) -> set[str]:
        """Every topic there is."""
        return set(self.admin.list_topics(timeout=10).topics)

    def await_topic(self, topic: str) -> None:
        """Wait until a topic is there."""
        eventually(lambda: topic in self.topics(), f"{topic} is on {self.alias}")

    def produce(self, topic: str, partition: int) -> None:
        """Write records, in transactions of one record to odd partitions, whose markers leave gaps in the offsets."""
        transactional = {"transactional.id": f"app-{uuid4().hex}"} if partition % 2 else {}
        producer = Producer({"bootstrap.servers": self.bootstrap, **ORDERED, **transactional})
        if transactional:
            producer.init_transactions(20)
        for number in range(RECORDS):
            if transactional:
                producer.begin_transaction()
            producer.produce(topic, uuid4().bytes, b"key-%d" % number, partition)
            if transactional:
                producer.commit_transaction(20)
        assert producer.flush(20) == 0

    def records(self, topic: str) -> dict[int, list[Seen]]:
        """Every visible record of a topic by partition; nothing of one that clients cannot read yet."""
        if topic not in self.topics():
            return {}
        try:
            await_settled(self.bootstrap, topic)
            return read_topic(self.bootstrap, topic)
        except KafkaException as exc:
            if exc.args[0].code() not in NOT_YET:
                raise
            return {}

    def contents(self, topic: str) -> dict[int, list[bytes | None]]:
        """Their values."""
        return {p: [seen.content.value for seen in found] for p, found in self.records(topic).items()}

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Commit for a group without members."""
        groups = KafkaGroups(ClusterSettings(alias=self.alias, bootstrap=self.bootstrap), flow="test")
        groups.commit(group, {place: OffsetAndMetadata(offset) for place, offset in offsets.items()}, lambda: 20)

    def committed(self, group: str, topic: str) -> dict[Place, int]:
        """What a group has committed on a topic."""
        return {(topic, partition): offset for partition, offset in committed(self.bootstrap, group, topic).items()}

    def checkpointed(self, of: str, group: str) -> dict[Place, int]:
        """The newest checkpoint of each partition of a group of the cluster `of`: the downstream offset."""
        some = self.records(f"{of}.checkpoints.internal").get(0, [])
        found = [Checkpoint.decode(each.content.key or b"", each.content.value or b"") for each in some]
        return {(each.topic, each.partition): each.downstream for each in found if each.group == group}

    def await_checkpoints(self, of: str, group: str, expected: Mapping[Place, int]) -> None:
        """Wait until the newest checkpoints of a group are exactly these."""
        eventually(lambda: self.checkpointed(of, group) == expected, f"{group} has the checkpoints {expected}")


@dataclass(frozen=True, slots=True)
class Pair:
    """Both clusters, with the flow between them."""

    lab: Lab
    primary: Side
    backup: Side


def fresh(what: str) -> str:
    """A name that no other test uses."""
    return f"{what}-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two clusters with one flow; applications write in transactions, so that offsets differ on the two sides."""
    lab = Lab(
        configuration=load(CONFIGURATION),
        folder=tmp_path_factory.mktemp("mirror-client"),
        kafka_version=os.environ.get("KAFKA") or DEFAULT_KAFKA,
        control_overrides=EVERY_TWO_SECONDS,
        schedule_seconds=10,
        behaviour=LabBehaviour(metadata_refresh_s=1.0),
    )
    try:
        lab.start_servers()
        lab.start_flows()
        yield Pair(lab, *(Side(alias, lab.clusters[alias].bootstrap) for alias in ("primary", "backup")))
    finally:
        lab.stop()


@pytest.fixture(scope="module")
def ask() -> Ask:
    """Asks MM2's clients on a cluster about another cluster's alias, and perhaps about a group."""
    jars = resolve(f"mirror-client-{CLIENT}", str(JAVA / "mirror-client-pom.xml"), CLIENT)
    program = JAVA / "MirrorClientView.java"
    path = os.pathsep.join((str(compiled(program, jars)), classpath(jars)))
    command = [java_command(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path, program.stem]

    def asked(side: Side, alias: str, *group: str) -> dict[str, Any]:
        done = subprocess.run([*command, side.bootstrap, alias, *group], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return asked


@pytest.fixture(scope="module")
def topic(pair: Pair) -> str:
    """A topic with records in all partitions but the last, on both sides; each test has groups of its own."""
    topic = create_topic(pair.primary.bootstrap, fresh("test-topic"), PARTITIONS)
    for partition in range(PARTITIONS - 1):
        pair.primary.produce(topic, partition)
    expected = pair.primary.contents(topic)
    eventually(lambda: pair.backup.contents(f"primary.{topic}") == expected, "the records are on both sides")
    return topic


def test_the_target_shows_what_is_upstream_how_far_it_is_and_which_topics_are_remote(
    pair: Pair, ask: Ask, topic: str
) -> None:
    pair.primary.commit(fresh("consumer-group"), {(topic, 0): 0})
    pair.backup.await_topic("primary.checkpoints.internal")
    pair.backup.await_topic("primary.heartbeats")
    eventually(lambda: any(pair.backup.records("primary.heartbeats").values()), "heartbeats of the source arrive")

    answer = ask(pair.backup, "primary")

    assert answer["upstreamClusters"] == ["primary"]
    assert answer["replicationHops"] == 1
    assert answer["heartbeatTopics"] == ["heartbeats", "primary.heartbeats"]
    assert answer["checkpointTopics"] == ["primary.checkpoints.internal"]
    assert {f"primary.{topic}", "primary.heartbeats"} <= set(answer["remoteTopics"])
    assert all(name.startswith("primary.") for name in answer["remoteTopics"])
    assert answer["remoteTopicsOfAlias"] == answer["remoteTopics"]
    assert ask(pair.backup, "nobody")["replicationHops"] == -1

    # No records flow back.
    answer = ask(pair.primary, "backup")
    assert (answer["upstreamClusters"], answer["replicationHops"], answer["remoteTopics"]) == ([], -1, [])


def test_a_group_is_sent_to_the_very_record_on_the_target_and_on_the_source_again(
    pair: Pair, ask: Ask, topic: str
) -> None:
    group, remote = fresh("consumer-group"), f"primary.{topic}"
    up, down = _offsets(pair.primary, topic), _offsets(pair.backup, remote)

    # On the source it stands before a record, behind a marker in the middle, and at the end.
    for number, at in ((7, up[0][7]), (8, up[0][7] + 1)):
        pair.primary.commit(group, {(topic, 0): at, (topic, 1): up[1][-1] + 1})
        expected = {(remote, 0): down[0][number], (remote, 1): down[1][-1] + 1}
        pair.backup.await_checkpoints("primary", group, expected)
        assert _translated(ask(pair.backup, "primary", group)) == expected

    # It goes over, reads some more, and asks for the way back.
    eventually(lambda: pair.backup.committed(group, remote).keys() == expected.keys(), "the group has its offsets")
    pair.backup.commit(group, {(remote, 0): down[0][12]})
    expected = {(topic, 0): up[0][12], (topic, 1): up[1][-1] + 1}
    pair.primary.await_checkpoints("backup", group, expected)
    assert _translated(ask(pair.primary, "backup", group)) == expected

    # The application may rely on the group's own offsets as well.
    eventually(lambda: pair.primary.committed(group, topic) == expected, "the group stands there on the source")


def test_nobody_is_sent_to_a_place_of_a_map_that_is_not_true_any_more(pair: Pair, ask: Ask, topic: str) -> None:
    """A lane that is stopped because its remote partition was made anew, beside one whose map is true.

    The last test: the lane stays stopped.
    """
    remote = f"primary.{topic}"
    up, down = _offsets(pair.primary, topic), _offsets(pair.backup, remote)
    states = DynamoDbLaneStates(pair.lab.dynamodb.client(), pair.lab.tables.lanes)
    states.stop(
        Lane(FlowName("primary", "backup"), topic, 0),
        Stop(reason="broken", upstream_offset=0, detail="made anew", at=1, untrue_from=0),
    )

    def checkpointed() -> str | None:
        """A group with checkpoints of the other lane alone: rounds know of the stop after a few seconds."""
        group = fresh("consumer-group")
        pair.primary.commit(group, {(topic, 0): up[0][7], (topic, 1): up[1][7]})
        eventually(lambda: (remote, 1) in pair.backup.checkpointed("primary", group), f"{group} has checkpoints")
        return None if (remote, 0) in pair.backup.checkpointed("primary", group) else group

    group = next(filter(None, (checkpointed() for _ in range(60))))

    assert _translated(ask(pair.backup, "primary", group)) == {(remote, 1): down[1][7]}


def _offsets(side: Side, topic: str) -> dict[int, list[int]]:
    """Of the records that a consumer finds; the n-th one of a partition is the same on both sides."""
    return {partition: [seen.offset for seen in found] for partition, found in side.records(topic).items()}


def _translated(answer: Mapping[str, Any]) -> dict[Place, int]:
    return {(topic, partition): offset for topic, partition, offset, _ in answer["translated"]}
