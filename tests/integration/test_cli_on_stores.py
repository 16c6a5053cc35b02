"""The operator's command on real servers: chains and documents are made as the functions make them."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from control import ControlWiring

from cli.main import main
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import RUNNING, LaneState, Lease, LeftOut, Stop, StopReason
from mirrorless.chain.run import Run, Span
from mirrorless.failover.work import CALL_SECONDS
from mirrorless.flow.settings import FlowSettings, Tables
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from mirrorless.lanes.check_state import LaneNotes, TopicNotes, write_notes
from mirrorless.mm2.internal_records import Heartbeat
from mirrorless.scheduled.runner import RoundReport, TaskReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from mirrorless.topics.topic_state import Recreated, TopicState
from tests.support.lane_stage import ORDERED
from tests.support.readback import await_settled
from tests.support.topics import create_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

ADVICE = pytest.mark.soak(
    "tests/unit/lanes/test_operator_actions.py::test_the_advice_of_every_stop_has_commands_that_run_as_printed",
    "tests/unit/cli/test_stop_advice.py::test_every_reason_of_a_stop_has_its_advice_and_its_cases",
    "tests/unit/cli/test_stop_advice.py::test_the_advice_of_a_stop_brings_each_record_once",
)

SCHEDULED = pytest.mark.soak(
    "tests/integration/test_cli_on_stores.py::test_an_open_transaction_on_the_source_is_named_with_its_producer_and_age"
)

FLOW = FlowName("us-east", "eu-west")
CONFIGURATION = """
clusters:
  us-east: {{bootstrap.servers: [east.example.com:9092], region: us-east-1, authentication: {{type: plaintext}}}}
  eu-west: {{bootstrap.servers: [west.example.com:9092], region: eu-west-1, authentication: {{type: plaintext}}}}
flows:
  us-east->eu-west:
    topics: [{topic}]
"""
SETTLED = 1_763_700_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Stores and a source topic of this test alone, and the state file that leads the command to them."""

    topic: str
    state: Path
    chains: DynamoDbChains
    states: DynamoDbLaneStates
    ledger: DynamoDbLossLedger
    documents: DynamoDbDocuments
    checkpoints: DynamoDbDocuments
    source: KafkaCluster
    target: KafkaCluster

    def lane(self, partition: int = 0) -> Lane:
        """A lane of this test's topic."""
        return Lane(FLOW, self.topic, partition)

    def replicate(
        self,
        position: int,
        upto: int,
        *spans: Span,
        partition: int = 0,
        state: str = "committed",
        newest: int = SETTLED,
    ) -> Run:
        """Add a link as the forwarder would: prepared, then confirmed."""
        run = Run(
            lane=self.lane(partition),
            generation=self.chains.heads([self.lane(partition)])[self.lane(partition)].generation,
            position=position,
            next=upto,
            spans=spans,
            state="prepared",
            writer="us-east.eu-west.test",
            attempt=uuid4().hex,
            fingerprint=b"f" * 16,
            digest=b"d" * 16,
            oldest_timestamp=SETTLED,
            newest_timestamp=newest,
            records=sum(span.length for span in spans),
            bytes=0,
            settled_at=SETTLED,
        )
        self.chains.prepare([run])
        if state == "committed":
            self.chains.confirm([run.committed()])
        return run

    def stop(self, reason: StopReason, upstream_offset: int) -> None:
        """Stop the first lane as the forwarder would."""
        stop = Stop(reason=reason, upstream_offset=upstream_offset, detail="it is too large", at=SETTLED)
        self.states.stop(self.lane(), stop)

    def stops(self, partitions: int) -> list[tuple[str, int] | None]:
        """Why and where each lane is stopped."""
        lanes = [self.lane(partition) for partition in range(partitions)]
        states = self.states.read(lanes)
        stops = [states.get(lane, RUNNING).stop for lane in lanes]
        return [None if stop is None else (stop.reason, stop.upstream_offset) for stop in stops]

    def run(self, *words: str) -> int:
        """The command's exit code."""
        return main([*words, "--lab", str(self.state)])


@pytest.fixture
def bench(
    clusters: tuple[KafkaCluster, KafkaCluster], dynamodb: DynamoDbLocal, tables: Tables, tmp_path: Path
) -> Bench:
    source, target = clusters
    topic = f"orders-{uuid4().hex[:8]}"
    create(source, topic, 2)
    config = tmp_path / "replication.yaml"
    config.write_text(CONFIGURATION.format(topic=topic))
    group = f"mirrorless.us-east.eu-west.{topic}"
    state: dict[str, Any] = {
        "ready": True,
        "config": str(config),
        "clusters": {
            cluster.alias: {"bootstrap": cluster.bootstrap, "pid": cluster.pid, "version": "4.1.1"}
            for cluster in clusters
        },
        "dynamodb": {"endpoint": dynamodb.endpoint, "pid": dynamodb.pid},
        "tables": msgspec.to_builtins(tables),
        "functions": {},
        "mappings": [{"uuid": "1", "flow": str(FLOW), "topic": topic, "group_id": group, "state": "Enabled"}],
        "logs": str(tmp_path),
    }
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))
    client = dynamodb.client()
    return Bench(
        topic=topic,
        state=path,
        chains=DynamoDbChains(client, tables.offset_map),
        states=DynamoDbLaneStates(client, tables.lanes),
        ledger=DynamoDbLossLedger(client, tables.loss_ledger),
        documents=DynamoDbDocuments(client, tables.control),
        checkpoints=DynamoDbDocuments(client, tables.checkpoints),
        source=source,
        target=target,
    )


def produce(bench: Bench, count: int, *, first_timestamp: int = 0) -> None:
    """Put records into partition 0 of the source topic; their timestamps grow by 1 ms, or are the client's."""
    producer = Producer({"bootstrap.servers": bench.source.bootstrap, **ORDERED})
    for number in range(count):
        timestamp = first_timestamp and first_timestamp + number
        producer.produce(bench.topic, value=str(number).encode(), partition=0, timestamp=timestamp)
    assert producer.flush(20) == 0


def silence(bench: Bench, alias: str, address: str = "127.0.0.1:1") -> None:
    """Point the command at nobody for this cluster."""
    state = json.loads(bench.state.read_text())
    state["clusters"][alias]["bootstrap"] = address
    bench.state.write_text(json.dumps(state))


def configure(bench: Bench, topics: str) -> None:
    """Give the flow other topics."""
    config = Path(json.loads(bench.state.read_text())["config"])
    config.write_text(config.read_text().replace(f"[{bench.topic}]", topics))


def create(cluster: KafkaCluster, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic where it is not there yet."""
    try:
        create_topic(cluster.bootstrap, topic, partitions, **configs)
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def beat(cluster: KafkaCluster, topic: str, *heartbeats: Heartbeat) -> None:
    """Write heartbeats to a topic, which other tests may have made before."""
    create(cluster, topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **ORDERED})
    for each in heartbeats:
        producer.produce(topic, key=each.key(), value=each.value(), partition=0, timestamp=each.timestamp)
    assert producer.flush(20) == 0


def report(bench: Bench, task: str, *, ok_at: int, **more: Any) -> None:
    """Leave a task's report as `Rounds` does."""
    told = TaskReport(task=task, at=now(), ms=5, ok_at=ok_at, **more)
    bench.documents.write(FLOW, {f"task/{task}": msgspec.json.encode(told)})


def now() -> int:
    return time.time_ns() // 1_000_000


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# translate


def test_offsets_are_translated_by_the_map_both_ways(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.replicate(0, 110, Span(100, 500, 5), Span(107, 505, 3))

    def translated(topic: str, *words: str) -> tuple[int | None, str]:
        assert bench.run("translate", str(FLOW), topic, *words, "--json") == 0
        said = answer(capsys)
        assert list(said)[:2] == ["offset", "state"]
        assert topic == bench.topic or said["source_topic"] == bench.topic
        return said["offset"], said["state"]

    for upstream, downstream, state in (
        (0, 500, "next_record"),
        (100, 500, "exact"),
        (104, 504, "exact"),
        (105, 505, "next_record"),
        (107, 505, "exact"),
        (110, 508, "exact"),
        (5_000, 508, "ahead_of_replication"),
    ):
        assert translated(bench.topic, "0", str(upstream)) == (downstream, state)
    assert translated(bench.topic, "0", "506", "--reverse") == (108, "exact")
    # At three in the morning it is the remote topic's name that is at hand.
    assert translated(f"us-east.{bench.topic}", "0", "501", "--reverse") == (101, "exact")
    assert translated(bench.topic, "1", "7") == (None, "no_map")


def test_a_stopped_lane_whose_map_is_not_true_has_no_offset_to_go_to(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.replicate(0, 110, Span(100, 500, 5))
    bench.states.stop(bench.lane(), Stop(reason="broken", upstream_offset=0, detail="anew", at=SETTLED, untrue_from=0))

    for way in ((), ("--reverse",)):
        assert bench.run("translate", str(FLOW), bench.topic, "0", "101", "--json", *way) == 0
        said = answer(capsys)
        assert (said["offset"], said["state"]) == (None, "map_lost")
    assert bench.run("translate", str(FLOW), bench.topic, "0", "101") == 0
    assert f"mirrorless lanes stopped '{FLOW}'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("topic", "partition", "says"),
    [("nothing", 0, "has no topic nothing"), ("", 2, "has no partition 2 (a retry does not help)")],
)
def test_an_offset_of_what_the_source_does_not_have_is_bad_input(
    bench: Bench, topic: str, partition: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run("translate", str(FLOW), topic or bench.topic, str(partition), "7") == 2

    assert says in capsys.readouterr().err


def test_the_command_answers_as_a_process_and_soon(bench: Bench) -> None:
    """The installed command, as a program runs it: JSON and nothing else on its output."""
    bench.replicate(0, 3, Span(0, 40, 3))
    words = ["translate", str(FLOW), bench.topic, "0", "1", "--json", "--lab", str(bench.state)]

    done = subprocess.run([sys.executable, "-m", "cli.main", *words], capture_output=True, check=True, timeout=60)

    assert json.loads(done.stdout)["offset"] == 41
    assert done.stderr == b""


# status


def partitions(said: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = said["flows"][0]["topics"][0]["partitions"]
    return rows


def test_status_shows_position_lag_gaps_and_doubt(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    produce(bench, 20)
    bench.replicate(0, 4, Span(0, 70, 4))
    bench.replicate(4, 10, Span(7, 74, 3))
    bench.replicate(10, 12, Span(10, 77, 2), state="prepared")

    code = bench.run("status", "--json")

    first, second = partitions(answer(capsys))
    assert code == 0
    assert first | {"position": 10, "source_end": 20, "lag": 10, "in_doubt": True, "gaps_in_newest_runs": 3} == first
    assert first["last_run_at"] == SETTLED
    assert second | {"position": 0, "source_end": 0, "lag": 0, "last_run_at": None, "in_doubt": False} == second


def test_a_silent_source_is_reported_and_does_not_hide_the_rest(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source being down is the very moment at which the map is needed most."""
    bench.replicate(0, 4, Span(0, 70, 4), partition=1)
    silence(bench, "us-east")

    code = bench.run("status", str(FLOW), "--json")

    said = answer(capsys)
    assert code == 0
    assert said["flows"][0]["source_reachable"] is False
    assert "127.0.0.1:1" in said["flows"][0]["source_trouble"]
    assert [row["position"] for row in partitions(said)] == [0, 4]
    assert [row["lag"] for row in partitions(said)] == [None, None]


@pytest.mark.soak(
    "tests/unit/cli/test_status_views.py::test_a_page_has_lag_throughput_and_latency_of_the_runs_in_the_map_and_names_what_is_stopped_first"
)
def test_the_page_of_a_status_is_written(bench: Bench, tmp_path: Path) -> None:
    bench.replicate(0, 4, Span(0, 70, 4))
    page = tmp_path / "page.html"

    assert bench.run("status", "--html", str(page)) == 1  # the source ends below the position
    assert bench.run("status", "--html", str(tmp_path)) == 2

    text = page.read_text()
    assert bench.topic in text
    assert "seconds that the oldest record of a run had waited" in text


def test_a_topic_that_the_flow_names_and_the_source_lacks_needs_the_operator(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(bench, f"[{bench.topic}, absent]")

    assert bench.run("status") == 1

    assert "! absent: us-east has no such topic" in capsys.readouterr().out


def test_the_lane_of_a_partition_that_is_gone_is_closed_and_left_out(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    produce(bench, 3)
    for partition in range(2):
        bench.replicate(0, 100, Span(0, 70, 100), partition=partition)
    admin = AdminClient({"bootstrap.servers": bench.source.bootstrap})
    admin.delete_topics([bench.topic])[bench.topic].result(20)
    eventually(lambda: bench.topic not in admin.list_topics(timeout=5).topics, "the topic is deleted")
    create(bench.source, bench.topic, 1)
    eventually(lambda: bench.topic in admin.list_topics(timeout=5).topics, "the new topic is shown")
    for partition in range(2):
        stop = Stop(reason="recreated", upstream_offset=0, detail="it was created again", at=SETTLED)
        bench.states.stop(bench.lane(partition), stop)
    assert bench.run("status") == 1
    capsys.readouterr()

    words = ["lanes", "reset", str(FLOW), bench.topic, "--to", "earliest", "--reason", "re-created", "--execute"]
    assert bench.run(*words) == 0

    shown = capsys.readouterr().out
    assert f"{bench.topic} has 1 partition on the source now." in shown
    assert [line.split()[2] for line in shown.splitlines()[3:5]] == ["0", "closed"]
    assert bench.stops(2) == [None, None]
    assert bench.run("status", "--json") == 0
    assert [each["partition"] for each in partitions(answer(capsys))] == [0]


def test_lag_in_seconds_is_the_age_of_the_oldest_record_that_waits(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of the newest, and not of what is replicated already: it is what a reader on the target misses."""
    hour_ago = now() - 3_600_000
    produce(bench, 10, first_timestamp=hour_ago)
    bench.replicate(0, 4, Span(0, 70, 4))

    bench.run("status", "--json")

    first, second = partitions(answer(capsys))
    assert 3600 <= first["lag_seconds"] < 3660
    assert (second["lag"], second["lag_seconds"]) == (0, 0)


def test_a_lag_of_markers_alone_is_no_time(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """`lag at most` counts the marker that a transaction leaves behind its last record; nobody waits for it."""
    producer = Producer({"bootstrap.servers": bench.source.bootstrap, "transactional.id": bench.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(bench.topic, b"v", partition=0)
    producer.commit_transaction(20)
    await_settled(bench.source.bootstrap, bench.topic)
    bench.replicate(0, 1, Span(0, 70, 1))

    bench.run("status", "--json")

    first, _ = partitions(answer(capsys))
    assert (first["lag"], first["lag_seconds"]) == (1, 0)


@pytest.mark.parametrize("scheduled", [False, pytest.param(True, marks=SCHEDULED)])
def test_an_open_transaction_on_the_source_is_named_with_its_producer_and_age(
    bench: Bench, capsys: pytest.CaptureFixture[str], *, scheduled: bool
) -> None:
    """Committed records behind it are seen by no reader; the lag was 0 s."""
    write_scheduled_topics(bench.documents, FLOW, {bench.topic: 2} if scheduled else {}, stored={})
    produce(bench, 10)
    bench.replicate(0, 10, Span(0, 70, 10))
    other = Producer({"bootstrap.servers": bench.source.bootstrap, "transactional.id": bench.topic})
    other.init_transactions(20)
    other.begin_transaction()
    for partition, seconds in ((0, 60), (1, 3_600)):
        other.produce(bench.topic, b"open", partition=partition, timestamp=now() - 1_000 * seconds)
    assert other.flush(20) == 0
    produce(bench, 50)

    assert bench.run("status", "--json") == 1, "the older one has outlived what brokers allow"

    first, second = partitions(answer(capsys))
    assert (first["lag"], first["open_transaction"]["offset"], second["open_transaction"]["offset"]) == (51, 10, 0)
    assert 60 <= first["lag_seconds"] < 600
    assert 3_600 <= second["lag_seconds"] < 4_200
    producer = first["open_transaction"]["producer"]
    assert (producer["transactional_id"], producer) == (bench.topic, second["open_transaction"]["producer"])

    bench.run("status")
    shown = capsys.readouterr().out
    named = (
        f"a transaction of producer {producer['producer_id']} (epoch {producer['epoch']}, `{bench.topic}`), open since"
    )
    assert f"  {bench.lane()}: 51 upstream offsets from 10 on wait for {named}" in shown
    assert f"! {bench.lane(1)}: 1 upstream offset from 0 on wait for {named}" in shown

    other.commit_transaction(20)
    await_settled(bench.source.bootstrap, bench.topic)
    bench.run("status", "--json")
    assert [each["open_transaction"] for each in partitions(answer(capsys))] == [None, None]


def test_the_newest_heartbeats_of_both_kinds_are_found(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Other flows write to the same topic, more than is read at first."""
    ours = Heartbeat(source="us-east", target="eu-west", timestamp=SETTLED)
    others = [Heartbeat(source="ap-south", target="eu-west", timestamp=SETTLED + n) for n in range(700)]
    back = Heartbeat(source="eu-west", target="us-east", timestamp=SETTLED + 5)
    beat(bench.target, "heartbeats", ours, *others)
    beat(bench.target, "us-east.heartbeats", back)

    bench.run("status", "--json")

    said = answer(capsys)["flows"][0]["heartbeats"]
    assert said == {"enabled": True, "emitted_at": SETTLED, "replicated_at": SETTLED + 5, "target_trouble": ""}


def test_a_silent_target_is_reported_and_does_not_hide_the_rest(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    produce(bench, 4)
    bench.replicate(0, 4, Span(0, 70, 4))
    silence(bench, "eu-west")

    assert bench.run("status") == 0

    shown = capsys.readouterr().out
    assert "heartbeats  on the target ?, end to end ?" in shown
    assert "The target does not answer" in shown


# groups


def follow(bench: Bench, group: str, readiness: Any, *, direction: Any = "forward", **more: Any) -> None:
    """Keep a group's checkpoints as the checkpoint round does."""
    offsets = {bench.topic: {0: GroupOffset(10, 700, "exact"), 1: GroupOffset(5, None, "no_map", "note")}}
    found = GroupCheckpoints(group=group, direction=direction, at=SETTLED, readiness=readiness, offsets=offsets, **more)
    bench.checkpoints.write(FLOW, {found.key: msgspec.json.encode(found)})


def commit(cluster: KafkaCluster, group: str, topic: str, offset: int) -> None:
    """Commit for partition 0, as a consumer does that then leaves."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


@pytest.mark.soak("tests/unit/cli/test_groups.py::test_all_groups_are_listed_and_the_excluded_ones_as_such")
def test_groups_are_listed_with_those_that_the_filter_refuses(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    follow(bench, "shop", "ready", by="group")
    follow(bench, "crm", "active_on_source", direction="reverse")
    commit(bench.source, "console-consumer-4711", bench.topic, 0)
    commit(bench.source, f"mirrorless.us-east.eu-west.{bench.topic}", bench.topic, 0)

    assert bench.run("groups", str(FLOW), "--json") == 0

    said = answer(capsys)
    assert [(each["group"], each["readiness"], each["by"]) for each in said["groups"]] == [("shop", "ready", "group")]
    assert "console-consumer-4711" in said["excluded"]
    assert not [name for name in said["excluded"] if name.startswith("mirrorless.")]
    assert said["trouble"] == ""

    assert bench.run("groups", str(FLOW), "--reverse", "--json") == 0
    said = answer(capsys)
    assert (said["direction"], [each["group"] for each in said["groups"]]) == ("reverse", ["crm"])


def test_one_group_is_shown_by_partition_with_what_it_has_committed_there(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    group = f"shop-{bench.topic}"
    follow(bench, group, "ready", by="group")
    follow(bench, group, "ready", direction="reverse")
    create(bench.target, f"us-east.{bench.topic}", 2)
    create(bench.target, bench.topic, 2)
    commit(bench.target, group, f"us-east.{bench.topic}", 699)
    commit(bench.target, group, bench.topic, 3)  # the target's own topic is none of this flow's
    commit(bench.source, group, bench.topic, 9)

    assert bench.run("groups", str(FLOW), "--group", group, "--json") == 0
    (forward,) = answer(capsys)["groups"]
    assert [each["committed_there"] for each in forward["offsets"]] == [699, None]
    assert (
        forward["offsets"][1] | {"upstream": 5, "downstream": None, "state": "no_map", "metadata": "note"}
        == (forward["offsets"][1])
    )

    assert bench.run("groups", str(FLOW), "--group", group, "--reverse", "--json") == 0
    (back,) = answer(capsys)["groups"]
    assert [each["committed_there"] for each in back["offsets"]] == [9, None]

    assert bench.run("groups", str(FLOW), "--group", group) == 0
    shown = capsys.readouterr().out
    assert "committed on eu-west" in shown
    assert "exactly where it is" in shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedGroup:
    """A group whose offsets are synchronised by the scheduled function, in the first partition of a flow."""

    bench: Bench
    name: str
    wiring: ControlWiring

    @property
    def remote(self) -> str:
        """The topic's name on the target."""
        return f"us-east.{self.bench.topic}"

    def stand(self, *, source: int | None = None, target: int | None = None) -> None:
        """Commit by hand, while it has no members."""
        if source is not None:
            commit(self.bench.source, self.name, self.bench.topic, source)
        if target is not None:
            commit(self.bench.target, self.name, self.remote, target)

    def on_target(self) -> int:
        """Its committed offset on the target."""
        found = self.wiring.target.groups.committed([self.name], lambda: 20.0)
        return found[self.name][self.remote, 0].offset

    def act(self) -> None:
        """One checkpoint round of a new run."""
        (task,) = [task for task in self.wiring.tasks() if task.name == "checkpoints"]
        report = RoundReport()
        task.act(report, lambda: 20.0)
        assert report.troubles == []

    def run(self, *words: str) -> int:
        """The command's exit code."""
        return self.bench.run("groups", str(FLOW), *words)


@pytest.fixture
def synced(bench: Bench, flow_settings: FlowSettings, monkeypatch: pytest.MonkeyPatch) -> SyncedGroup:
    """90 records are replicated; the downstream offsets are greater by one."""
    endpoint = json.loads(bench.state.read_text())["dynamodb"]["endpoint"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    create(bench.target, f"us-east.{bench.topic}", 2)
    bench.replicate(0, 90, Span(0, 1, 90))
    name = f"shop-{bench.topic}"
    settings = ControlSettings(
        flow=flow_settings,
        aliases=(FLOW.source, FLOW.target),
        topics=(bench.topic,),
        groups=(name,),
        sync_group_offsets_seconds=0.001,
        checkpoints_replication_factor=1,
    )
    return SyncedGroup(bench=bench, name=name, wiring=ControlWiring(settings))


def test_a_group_rewound_on_the_source_is_shown_and_moved_back_by_order(
    synced: SyncedGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    synced.stand(source=90)
    synced.act()
    assert synced.on_target() == 91
    synced.stand(source=10)
    synced.act()
    assert synced.run("--group", synced.name, "--json") == 1
    (shown,) = answer(capsys)["groups"]
    assert (shown["readiness"], shown["skip"], shown["reread"]) == ("ahead_on_target", 80, 0)

    assert synced.run("--move-back", synced.name) == 0
    plan = capsys.readouterr().out
    assert f"eu-west {synced.remote}-0: from 91 back to 11, over 80 records" in plan
    assert "Nothing was changed" in plan
    assert synced.on_target() == 91

    assert synced.run("--move-back", synced.name, "--execute", "--json") == 0
    done = answer(capsys)
    moves = [{"topic": synced.bench.topic, "partition": 0, "from": 91, "to": 11, "records": 80}]
    assert (done["executed"], done["moves"]) == (True, moves)
    assert synced.on_target() == 11

    synced.act()
    assert synced.run("--group", synced.name, "--json") == 0
    assert answer(capsys)["groups"][0]["readiness"] == "ready"
    synced.stand(source=30)
    synced.act()
    assert synced.on_target() == 31
    assert synced.run("--move-back", synced.name, "--execute") == 0
    assert "nothing to move" in capsys.readouterr().out


@pytest.mark.soak("tests/unit/groups/test_ownership.py::test_a_group_with_members_is_refused")
def test_a_group_with_members_on_the_target_is_not_moved_back(
    synced: SyncedGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    for offset in (90, 10):
        synced.stand(source=offset)
        synced.act()
    member = Consumer({"bootstrap.servers": synced.bench.target.bootstrap, "group.id": synced.name, "log_level": 0})
    try:
        member.subscribe([synced.remote])
        deadline = time.monotonic() + 20
        while not member.assignment():
            assert time.monotonic() < deadline
            member.poll(0.1)

        assert synced.run("--move-back", synced.name, "--execute") == 2
    finally:
        member.close()

    assert "it has members" in capsys.readouterr().err
    assert synced.on_target() == 91


def test_an_order_without_a_group_is_bad_input(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("groups", str(FLOW), "--execute") == 2
    assert "--move-back" in capsys.readouterr().err
    assert bench.run("groups", str(FLOW), "--move-back", "unheard-of") == 2
    assert "no checkpoint of group unheard-of" in capsys.readouterr().err


def test_groups_are_known_while_the_source_is_down(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The very moment at which somebody asks which groups can move."""
    follow(bench, "shop", "ahead_of_replication", ahead=4)
    silence(bench, "us-east")

    assert bench.run("groups", str(FLOW)) == 0

    shown = capsys.readouterr().out
    assert "ahead of replication" in shown
    assert "Incomplete" in shown


def test_a_source_that_takes_connections_and_answers_nothing_holds_up_neither_groups_nor_a_failover(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The group has an offset on a partition without a map, of which only the source's end would say more."""
    bench.replicate(0, 4, Span(0, 700, 4))
    create(bench.target, f"us-east.{bench.topic}", 2)
    follow(bench, "shop", "ahead_of_replication")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        silence(bench, "us-east", f"127.0.0.1:{deaf.getsockname()[1]}")

        assert bench.run("translate", str(FLOW), bench.topic, "0", "2") == 0
        assert bench.run("status", str(FLOW)) == 0
        assert "does not answer" in capsys.readouterr().out
        words = ("failover", str(FLOW), "--source-lost", "--execute", "--report", str(tmp_path), "--json")
        code = bench.run(*words)

    (flow,) = answer(capsys)["flows"]
    assert (code, flow["error"], flow["totals"]["finished"]) == (3, "", True)
    assert [each for each in flow["totals"]["missing"] if each.startswith("group shop: ")], flow["totals"]
    spent = {each["step"]: each["ms"] for each in flow["steps"]}
    assert spent["groups"] < CALL_SECONDS * 1000, "no question to the source takes a round's time"


def test_a_group_that_is_not_followed_is_bad_input_with_the_reason(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    for group, reason in (
        ("console-consumer-1", "refuse it"),
        ("mirrorless.us-east.eu-west.orders", "event source mapping"),
        ("shop", "has committed nothing"),
    ):
        assert bench.run("groups", str(FLOW), "--group", group) == 2
        assert reason in capsys.readouterr().err


# topics


def test_topics_are_shown_from_both_sides(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Partitions, drift and what the refresh knows, for a literal topic and for one that a pattern finds."""
    found, remote = f"{bench.topic}-found", f"us-east.{bench.topic}"
    create(bench.source, found)
    create(bench.target, remote, 1, **{"retention.ms": "1000"})
    seen = TopicState(topic=found, topic_id="id-1", partitions=1, first_seen=SETTLED, late=True)
    bench.documents.write(FLOW, {f"topic/{found}": msgspec.json.encode(seen)})
    configure(bench, f"[{bench.topic}, '{bench.topic}-.*', 'eu-west[.]{bench.topic}', missing-{bench.topic}]")
    create(bench.source, f"eu-west.{bench.topic}")

    assert bench.run("topics", str(FLOW), "--json") == 0

    said = answer(capsys)
    rows = {row["topic"]: row for row in said["topics"]}
    # Other tests write heartbeats to these clusters, and those are replicated, too.
    assert set(rows) - {"heartbeats"} == {bench.topic, found, f"missing-{bench.topic}"}
    literal, late, missing = rows[bench.topic], rows[found], rows[f"missing-{bench.topic}"]
    assert literal == {
        "topic": bench.topic,
        "remote_topic": remote,
        "source_partitions": 2,
        "target_partitions": 1,
        "trigger": "mapping",
        "trigger_changing": False,
        "mapping_made_by": "deployment",
        "mapping_state": "Enabled",
        "config_drift": ["retention.ms"],
        "topic_id": None,
        "found_late": False,
        "trouble": "the remote topic has fewer partitions",
    }
    assert (late["mapping_made_by"], late["found_late"], late["trouble"]) == (
        "refresh_topics",
        True,
        "no remote topic yet",
    )
    assert (missing["source_partitions"], missing["trouble"]) == (0, "not on the source")
    assert said["refused"] == {"cycle": [f"eu-west.{bench.topic}"]}


def test_topics_are_known_while_the_source_is_down(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    gone = Recreated(topic_id="id-2", waiting={0: 0})
    seen = TopicState(topic=bench.topic, topic_id="id-1", partitions=2, first_seen=SETTLED, recreated=gone)
    bench.documents.write(FLOW, {f"topic/{bench.topic}": msgspec.json.encode(seen)})
    report(bench, "topics", ok_at=now(), troubles=("an odd thing",))
    silence(bench, "us-east")

    assert bench.run("topics", str(FLOW)) == 1

    shown = capsys.readouterr().out
    assert "! re-created" in shown
    assert "an odd thing" in shown
    assert "127.0.0.1:1" in shown


# lanes


@ADVICE
def test_every_command_that_a_status_prints_about_stops_runs_as_printed(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    produce(bench, 9)
    bench.replicate(0, 4, Span(0, 70, 4))
    create(bench.target, f"us-east.{bench.topic}", 2)
    programs = set()
    for reason in get_args(StopReason):
        if reason == "backfilled":
            continue  # its command starts a job
        bench.stop(reason, 4)
        assert bench.run("status") == 1
        commands = re.findall(r"`mirrorless ([^`]+)`", capsys.readouterr().out)
        assert commands
        for command in commands:
            bench.stop(reason, 4)
            words = shlex.split(command)
            assert bench.run(*words) == 0, command
            if "--execute" in words:  # the others show a plan
                assert bench.states.read([bench.lane()])[bench.lane()].stop is None, command
            programs.add(words[1])
    assert programs == {"resume", "quarantine", "reset"}


def test_a_reset_finds_the_end_of_what_the_target_has_by_the_records(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Aborted records and markers stand behind it on the target, and the map has nothing left of the lane."""
    remote, since = f"us-east.{bench.topic}", now()
    produce(bench, 900, first_timestamp=since)
    create(bench.target, remote, 2)
    producer = Producer({"bootstrap.servers": bench.target.bootstrap, "transactional.id": remote})
    producer.init_transactions(20)
    for first, end in ((0, 400), (400, 637), (637, 760)):
        producer.begin_transaction()
        for number in range(first, end):
            producer.produce(remote, value=str(number).encode(), partition=0, timestamp=since + number)
        assert producer.flush(20) == 0
        if end > 637:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    await_settled(bench.target.bootstrap, remote)
    bench.states.begin(bench.lane(), 2)
    bench.stop("expired", 0)

    words = ["lanes", "reset", str(FLOW), bench.topic, "0", "--to", "target", "--reason", "expired", "--execute"]
    assert bench.run(*words) == 0, capsys.readouterr().err

    head = bench.chains.heads([bench.lane()])[bench.lane()]
    assert (head.generation, head.position) == (3, 637)
    assert bench.ledger.read(bench.lane()) == []


def test_an_order_is_a_plan_until_it_is_executed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.stop("refused", 17)

    for words in (["resume"], ["quarantine", "17"], ["reset", "--to", "30", "--reason", "because"]):
        assert bench.run("lanes", words[0], str(FLOW), bench.topic, "0", *words[1:]) == 0
        assert "Nothing was changed" in capsys.readouterr().out

    state = bench.states.read([bench.lane()])[bench.lane()]
    assert state.stop is not None
    assert state.quarantine == ()
    assert bench.chains.heads([bench.lane()])[bench.lane()].generation == 0


@ADVICE
def test_a_lane_goes_on_after_its_topic_was_created_anew(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """`--to earliest` asks the source; the new generation begins there, with no order about the old records left."""
    produce(bench, 3)
    bench.replicate(0, 100, Span(0, 70, 100))
    bench.states.quarantine(bench.lane(), *LeftOut.each(2))
    bench.stop("contradiction", 0)

    words = ["lanes", "reset", str(FLOW), bench.topic, "0", "--to", "earliest", "--reason", "created anew", "--execute"]
    assert bench.run(*words, "--json") == 0

    said = answer(capsys)
    assert said["executed"] is True
    assert any("The source holds upstream offsets 0 to 3" in step for step in said["plan"])
    assert any(f"mirrorless.us-east.eu-west.{bench.topic} has committed nothing" in step for step in said["plan"])
    head = bench.chains.heads([bench.lane()])[bench.lane()]
    assert (head.generation, head.position) == (1, 0)
    assert bench.ledger.read(bench.lane()) == []
    state = bench.states.read([bench.lane()])[bench.lane()]
    assert state.stop is None
    assert state.quarantine == ()

    # The new generation has a map of its own.
    bench.replicate(0, 3, Span(0, 170, 3))
    assert bench.run("translate", str(FLOW), bench.topic, "0", "2", "--json") == 0
    assert answer(capsys) == {"offset": 172, "state": "exact", "generation": 1}


def test_a_record_is_shown_as_it_is_and_its_value_is_written(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Behind an aborted transaction, whose record no reader sees."""
    producer = Producer({"bootstrap.servers": bench.source.bootstrap, "transactional.id": bench.topic})
    producer.init_transactions(20)
    for commit in (False, True):
        producer.begin_transaction()
        headers: list[tuple[str, str | bytes | None]] = [("n", b"\xff"), ("n", None)]
        producer.produce(bench.topic, b"\x00poison", b"k", 1, headers=headers)
        assert producer.flush(20) == 0  # an abort drops what was not sent
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
    await_settled(bench.source.bootstrap, bench.topic)
    file = tmp_path / "value"
    words = ("lanes", "show", str(FLOW), bench.topic, "1")

    assert bench.run(*words, "2", "--to", str(file), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["upstream_offset"], shown["key_hex"], shown["value_bytes"]) == (2, b"k".hex(), 7)
    assert shown["headers"] == [{"name": "n", "bytes": 1, "hex": "ff"}, {"name": "n", "bytes": None, "hex": None}]
    assert file.read_bytes() == b"\x00poison"
    assert bench.run(*words, "2", "--to", str(file)) == 2, "an existing file is kept"
    assert bench.run(*words, "0") == 2
    assert "the next record is at 2" in capsys.readouterr().err
    assert bench.run(*words, "4") == 2
    assert "none follows" in capsys.readouterr().err


@pytest.mark.soak(
    "tests/unit/lanes/test_operator_actions.py::test_a_reset_notes_what_it_skips_and_says_what_may_be_repeated",
    "tests/unit/cli/test_lane_orders.py::test_a_loss_names_its_offsets_and_its_cause",
)
def test_what_a_reset_skips_is_in_the_loss_ledger(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.replicate(0, 100, Span(0, 70, 100))

    words = ["lanes", "reset", str(FLOW), bench.topic, "0", "--to", "130", "--reason", "poison", "--execute"]
    assert bench.run(*words) == 0
    capsys.readouterr()
    assert bench.run("losses", str(FLOW), bench.topic, "--json") == 0

    (loss,) = answer(capsys)["losses"]
    assert loss | {"generation": 0, "first": 100, "next": 130, "cause": "reset", "partition": 0} == loss
    assert "poison" in loss["detail"]


@pytest.mark.soak("tests/unit/cli/test_clusters.py::test_the_advice_for_a_reset_compares_the_groups_commit")
def test_a_group_that_is_ahead_of_the_reset_is_named_with_the_way_back(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mapping does not deliver below its own committed offset, whatever the map says."""
    produce(bench, 10)
    bench.replicate(0, 10, Span(0, 70, 10))
    group = f"mirrorless.us-east.eu-west.{bench.topic}"
    consumer = Consumer({"bootstrap.servers": bench.source.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(bench.topic, 0, 10)], asynchronous=False)
    consumer.close()

    assert bench.run("lanes", "reset", str(FLOW), bench.topic, "0", "--to", "4", "--reason", "again") == 0

    shown = capsys.readouterr().out
    assert f"Group {group} has committed 10, above 4" in shown
    assert "--to-offset 4" in shown
    assert "twice" in shown


def test_a_lane_in_doubt_is_not_reset_before_it_is_settled(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.replicate(0, 5, Span(0, 70, 5), state="prepared")

    words = ["lanes", "reset", str(FLOW), bench.topic, "0", "--to", "0", "--reason", "again", "--execute"]
    assert bench.run(*words) == 1
    assert "in doubt" in capsys.readouterr().err

    # Once the forwarder has fenced the writer and found no witness, the operator may give the run up.
    bench.stop("broken", 0)
    assert bench.run(*words) == 0
    head = bench.chains.heads([bench.lane()])[bench.lane()]
    assert (head.generation, head.position, head.in_doubt) == (1, 0, False)


def test_lanes_are_held_where_they_stand_and_go_on_together(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """In a failover the source is silent: partitions are those with a chain, and those that the watch has seen."""
    bench.replicate(0, 100, Span(0, 70, 100), partition=1)
    bench.stop("refused", 17)
    silence(bench, "us-east")
    seen = TopicState(topic=bench.topic, topic_id="id-1", partitions=3, first_seen=1)
    bench.documents.write(FLOW, {f"topic/{bench.topic}": msgspec.json.encode(seen)})
    hold = ["lanes", "hold", str(FLOW), bench.topic, "--reason", "failover, ticket 4711"]

    assert bench.run(*hold) == 0
    shown = capsys.readouterr().out
    assert "Nothing was changed" in shown
    assert "are not held" in shown  # what nobody has seen yet
    assert bench.run(*hold, "--execute", "--json") == 0

    said = answer(capsys)
    assert [(lane["partition"], lane["upstream_offset"], lane["changes"]) for lane in said["lanes"]] == [
        (0, None, False),
        (1, 100, True),
        (2, 0, True),
    ]
    assert said["executed"] is True
    assert bench.stops(3) == [("refused", 17), ("held", 100), ("held", 0)]

    assert bench.run("lanes", "resume", str(FLOW), bench.topic, "--execute") == 0
    assert bench.stops(3) == [("refused", 17), None, None]


def test_the_lease_of_a_dead_job_is_ended(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.states.take(bench.lane(1), Lease(holder="backfill-7", until=now() + 600_000), now=now())
    bench.states.wait(bench.lane(1), 42)

    assert bench.run("status", str(FLOW)) == 0
    assert "1 lane leased by job run backfill-7 until" in capsys.readouterr().out
    words = ["lanes", "reset", str(FLOW), bench.topic, "1", "--to", "130", "--reason", "no", "--execute"]
    assert bench.run(*words) == 2
    assert "lanes release" in capsys.readouterr().err
    assert bench.run("lanes", "release", str(FLOW), bench.topic) == 0
    assert "backfill-7" in capsys.readouterr().out
    assert bench.states.read([bench.lane(1)])[bench.lane(1)].lease is not None

    assert bench.run("lanes", "release", str(FLOW), bench.topic, "1", "--execute", "--json") == 0

    assert answer(capsys)["executed"] is True
    released = Lease(holder="backfill-7 (released)", until=0)
    assert bench.states.read([bench.lane(1)])[bench.lane(1)] == LaneState(waiting=42, lease=released)
    # Nobody has the lane now, and a batch waits for its history.
    assert bench.run("status", str(FLOW), "--lanes") == 1
    shown = capsys.readouterr().out
    assert "WAITS" in shown
    assert "backfill start" in shown
    assert bench.run("lanes", "resume", str(FLOW), bench.topic, "1", "--execute") == 0  # without what the job left out
    assert bench.states.read([bench.lane(1)])[bench.lane(1)] == LaneState()
    capsys.readouterr()
    bench.states.wait(bench.lane(1), 42)
    assert bench.run("lanes", "resume", str(FLOW), bench.topic, "1", "--execute") == 2
    assert f"mirrorless lanes reset '{FLOW}' {bench.topic} 1 --to 42 --reason" in capsys.readouterr().err


# foreign records


def test_a_plan_is_refused_where_the_flow_would_begin_beside_records_that_it_has_not_written(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An aborted record is nobody's: partition 1 has nothing that a reader gets."""
    produce(bench, 5)
    remote = f"us-east.{bench.topic}"
    create(bench.target, remote, 2)
    producer = Producer({"bootstrap.servers": bench.target.bootstrap, "transactional.id": remote, **ORDERED})
    producer.init_transactions(20)
    for partition in (0, 1):
        producer.begin_transaction()
        producer.produce(remote, value=b"theirs", partition=partition)
        assert producer.flush(20) == 0
        producer.abort_transaction(20) if partition else producer.commit_transaction(20)
    await_settled(bench.target.bootstrap, remote)
    written = tmp_path / "planned.yaml"
    words = ("plan", str(FLOW), "--sample-seconds", "0.1", "--json")

    def said(*more: str, code: int) -> list[str]:
        assert bench.run(*words, *more) == code
        return [note for note in answer(capsys)["notes"] if remote in note or "not known" in note]

    (note,) = said("--write", str(written), code=1)
    assert note.startswith(f"! {FLOW} {bench.topic}: {remote} has records that this flow has not written")
    assert "downstream offset 0 @ 0 on" in note
    assert "say `--beside`" in note
    assert not written.exists()
    assert said("--beside", "--write", str(written), code=0) == [note.removeprefix("! ")]
    assert written.exists()

    state = bench.state.read_text()
    bench.state.write_text(json.dumps(json.loads(state) | {"dynamodb": {"endpoint": "http://127.0.0.1:1", "pid": 1}}))
    named, unknown = said(code=1)
    assert named == note
    assert unknown.startswith("whether the flow has written what stands on the target is not known: ")

    bench.state.write_text(state)
    bench.replicate(0, 1, Span(0, 0, 1))
    assert said(code=0) == []


def test_orders_for_a_lane_name_the_records_of_others_beside_it(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    for partition in (0, 1):
        bench.replicate(0, 100, Span(0, 70, 100), partition=partition)
    bench.states.stop(bench.lane(), Stop(reason="held", upstream_offset=100, detail="by me", at=SETTLED))
    theirs = TopicNotes(lanes={0: LaneNotes(foreign=70, foreign_at=SETTLED), 1: LaneNotes()})
    write_notes(bench.documents, FLOW, {bench.topic: theirs})

    for named, count in (("0", 1), ("1", 0)):
        assert bench.run("lanes", "reset", str(FLOW), bench.topic, named, "--to", "40", "--reason", "again") == 0
        shown = capsys.readouterr().out
        assert shown.count("has records that this flow has not written, from partition and downstream offset") == count
    assert bench.run("lanes", "resume", str(FLOW), bench.topic, "0") == 0
    assert "has not written, from partition and downstream offset 0 @ 70 on" in capsys.readouterr().out


# bad input


def test_bad_input_ends_with_one_line_and_exit_code_2(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("translate", "us-east->nowhere", bench.topic, "0", "1") == 2
    assert "there is no such flow" in capsys.readouterr().err
    assert bench.run("translate", "us-east", bench.topic, "0", "1", "--json") == 2
    assert answer(capsys)["error"]["where"] == "FLOW"


def test_a_silent_dynamodb_ends_with_exit_code_1(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    state = json.loads(bench.state.read_text())
    state["dynamodb"]["endpoint"] = "http://127.0.0.1:1"
    bench.state.write_text(json.dumps(state))

    assert bench.run("translate", str(FLOW), bench.topic, "0", "1", "--json") == 1
    assert answer(capsys)["error"]["retriable"] is True
