"""MirrorMaker 2's own Java clients, `MirrorClient` and `RemoteClusterUtils`, on our clusters.

An application that was written for MM2 asks these before it fails over, and before it returns. What they should answer
is found by reading the records on both sides; nothing here asks our map.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.servers.artifacts import classpath, compiled, java_command, resolve
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Stop
from tests.support.mm2_stage import Pair, Place, Side, await_mirrored, fresh, servers
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

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two clusters with one flow; applications write in transactions, so that offsets differ on the two sides."""
    with servers(CONFIGURATION, tmp_path_factory.mktemp("mirror-client")) as lab:
        lab.start_flows()
        yield Pair.of(lab)


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
    topic = pair.primary.create(fresh("test-topic"), PARTITIONS)
    pair.primary.produce(topic, RECORDS, partitions=range(PARTITIONS - 1))
    await_mirrored(pair.primary, topic, pair.backup, f"primary.{topic}")
    return topic


def test_the_target_shows_what_is_upstream_how_far_it_is_and_which_topics_are_remote(
    pair: Pair, ask: Ask, topic: str
) -> None:
    pair.primary.commit(fresh("consumer-group"), {(topic, 0): 0})
    pair.backup.await_topic("primary.checkpoints.internal")
    pair.backup.await_topic("primary.heartbeats")
    eventually(lambda: pair.backup.count("primary.heartbeats"), "heartbeats of the source arrive")

    answer = ask(pair.backup, "primary")

    assert answer["upstreamClusters"] == ["primary"]
    assert answer["replicationHops"] == 1
    assert answer["heartbeatTopics"] == ["heartbeats", "primary.heartbeats"]
    assert answer["checkpointTopics"] == ["primary.checkpoints.internal"]
    assert {f"primary.{topic}", "primary.heartbeats"} <= set(answer["remoteTopics"])
    assert all(name.startswith("primary.") for name in answer["remoteTopics"])
    assert answer["remoteTopicsOfAlias"] == answer["remoteTopics"]
    assert ask(pair.backup, "nobody")["replicationHops"] == -1


@pytest.mark.soak(
    "tests/integration/test_mirror_client.py::test_the_target_shows_what_is_upstream_how_far_it_is_and_which_topics_are_remote"
)
def test_the_source_has_nothing_upstream_while_nothing_flows_back(pair: Pair, ask: Ask, topic: str) -> None:
    answer = ask(pair.primary, "backup")

    assert answer["upstreamClusters"] == []
    assert answer["replicationHops"] == -1
    assert answer["remoteTopics"] == []
    assert topic in pair.primary.topics()


def test_a_group_is_sent_to_the_very_record_on_the_target_and_on_the_source_again(
    pair: Pair, ask: Ask, topic: str
) -> None:
    group, remote = fresh("consumer-group"), f"primary.{topic}"
    up, down = _offsets(pair.primary, topic), _offsets(pair.backup, remote)

    # On the source it stands before a record, behind a marker in the middle, and at the end.
    for number, committed in ((7, up[0][7]), (8, up[0][7] + 1)):
        pair.primary.commit(group, {(topic, 0): committed, (topic, 1): up[1][-1] + 1})
        expected = {(remote, 0): down[0][number], (remote, 1): down[1][-1] + 1}
        pair.backup.await_checkpoints("primary", group, expected)
        assert _translated(ask(pair.backup, "primary", group)) == expected

    # It goes over, reads some more, and asks for the way back.
    pair.backup.await_committed(group, expected)
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

    def committed() -> str | None:
        """A group with checkpoints of the other lane alone: rounds know of the stop after a few seconds."""
        group = fresh("consumer-group")
        pair.primary.commit(group, {(topic, 0): up[0][7], (topic, 1): up[1][7]})
        eventually(lambda: (remote, 1) in pair.backup.checkpointed("primary", group), f"{group} has checkpoints")
        return None if (remote, 0) in pair.backup.checkpointed("primary", group) else group

    group = next(filter(None, (committed() for _ in range(60))))

    assert _translated(ask(pair.backup, "primary", group)) == {(remote, 1): down[1][7]}


def _offsets(side: Side, topic: str) -> dict[int, list[int]]:
    """Of the records that a consumer finds; the n-th one of a partition is the same on both sides."""
    return {partition: [seen.offset for seen in found] for partition, found in side.records(topic).items()}


def _translated(answer: Mapping[str, Any]) -> dict[Place, int]:
    return {(topic, partition): offset for topic, partition, offset, _ in answer["translated"]}
