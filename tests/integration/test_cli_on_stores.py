"""The operator's command on real servers: chains and documents are made as the functions make them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from control import ControlWiring

from cli.main import main
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import Run, Span
from mirrorless.failover.work import CALL_SECONDS
from mirrorless.flow.settings import FlowSettings, Tables
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from mirrorless.mm2.internal_records import Heartbeat
from mirrorless.scheduled.runner import RoundReport
from tests.support.commands import lab_state
from tests.support.lane_stage import ORDERED
from tests.support.readback import await_settled
from tests.support.topics import create_topic

pytestmark = pytest.mark.integration

FLOW = FlowName("us-east", "eu-west")
SETTLED = 1_763_700_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Stores and a source topic of this test alone, and the state file that leads the command to them."""

    topic: str
    state: Path
    chains: DynamoDbChains
    states: DynamoDbLaneStates
    ledger: DynamoDbLossLedger
    checkpoints: DynamoDbDocuments
    source: KafkaCluster
    target: KafkaCluster

    def lane(self, partition: int = 0) -> Lane:
        """A lane of this test's topic."""
        return Lane(FLOW, self.topic, partition)

    def replicate(self, position: int, upto: int, *spans: Span, state: str = "committed") -> None:
        """Add a link to the first lane as the forwarder would: prepared, then confirmed."""
        run = Run(
            lane=self.lane(),
            generation=0,
            position=position,
            next=upto,
            spans=spans,
            state="prepared",
            writer="us-east.eu-west.test",
            attempt=uuid4().hex,
            fingerprint=b"f" * 16,
            digest=b"d" * 16,
            oldest_timestamp=SETTLED,
            newest_timestamp=SETTLED,
            records=sum(span.length for span in spans),
            bytes=0,
            settled_at=SETTLED,
        )
        self.chains.prepare([run])
        if state == "committed":
            self.chains.confirm([run.committed()])

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
    group = f"mirrorless.us-east.eu-west.{topic}"
    mapping = {"uuid": "1", "flow": str(FLOW), "topic": topic, "group_id": group, "state": "Enabled"}
    bootstrap = {cluster.alias: cluster.bootstrap for cluster in clusters}
    flow = f"{FLOW}: {{topics: [{topic}]}}"
    state = lab_state(tmp_path, flow, bootstrap, dynamodb.endpoint, tables, mappings=[mapping])
    client = dynamodb.client()
    return Bench(
        topic=topic,
        state=state,
        chains=DynamoDbChains(client, tables.offset_map),
        states=DynamoDbLaneStates(client, tables.lanes),
        ledger=DynamoDbLossLedger(client, tables.loss_ledger),
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


def now() -> int:
    return time.time_ns() // 1_000_000


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# translate


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
    """The lag in seconds is what a reader on the target misses: not of the newest record, nor of one that is there."""
    produce(bench, 20, first_timestamp=now() - 3_600_000)
    bench.replicate(0, 4, Span(0, 70, 4))
    bench.replicate(4, 10, Span(7, 74, 3))
    bench.replicate(10, 12, Span(10, 77, 2), state="prepared")

    code = bench.run("status", "--json")

    first, second = partitions(answer(capsys))
    assert code == 0
    assert first | {"position": 10, "source_end": 20, "lag": 10, "in_doubt": True, "gaps_in_newest_runs": 3} == first
    assert 3600 <= first["lag_seconds"] < 3660
    assert first["last_run_at"] == SETTLED
    nothing = {"position": 0, "source_end": 0, "lag": 0, "lag_seconds": 0, "last_run_at": None, "in_doubt": False}
    assert second | nothing == second


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


def test_an_open_transaction_on_the_source_is_named_with_its_producer_and_age(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Committed records behind it are seen by no reader; the lag was 0 s."""
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


# groups


def test_a_group_rewound_on_the_source_is_shown_and_moved_back_by_order(
    bench: Bench, flow_settings: FlowSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """90 records are replicated; the downstream offsets are greater by one."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", json.loads(bench.state.read_text())["dynamodb"]["endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    name, remote = f"shop-{bench.topic}", f"us-east.{bench.topic}"
    create(bench.target, remote, 2)
    bench.replicate(0, 90, Span(0, 1, 90))
    settings = msgspec.structs.replace(
        flow_settings,
        aliases=(FLOW.source, FLOW.target),
        topics=(bench.topic,),
        groups=(name,),
        sync_group_offsets_enabled=True,
        sync_group_offsets_interval_seconds=0.001,
        checkpoints_topic_replication_factor=1,
    )
    wiring = ControlWiring(settings)

    def moved(offset: int) -> None:
        """A consumer commits on the source and leaves; then comes a round."""
        consumer = Consumer({"bootstrap.servers": bench.source.bootstrap, "group.id": name})
        consumer.commit(offsets=[TopicPartition(bench.topic, 0, offset)], asynchronous=False)
        consumer.close()
        checkpoint()

    def checkpoint() -> None:
        (task,) = [task for task in wiring.tasks() if task.name == "checkpoints"]
        report = RoundReport()
        task.act(report, lambda: 20.0)
        assert report.troubles == []

    def on_target() -> int:
        return wiring.target.groups.committed([name], lambda: 20.0)[name][remote, 0].offset

    def readiness() -> tuple[int, dict[str, Any]]:
        code = bench.run("groups", str(FLOW), "--group", name, "--json")
        (shown,) = answer(capsys)["groups"]
        return code, shown

    move_back = ("groups", str(FLOW), "--move-back", name)
    moved(90)
    assert on_target() == 91
    moved(10)
    code, shown = readiness()
    assert (code, shown["readiness"], shown["skip"], shown["reread"]) == (1, "ahead_on_target", 80, 0)

    assert bench.run(*move_back) == 0
    plan = capsys.readouterr().out
    assert f"eu-west {remote}-0: from 91 back to 11, over 80 records" in plan
    assert "Nothing was changed" in plan
    assert on_target() == 91

    assert bench.run(*move_back, "--execute", "--json") == 0
    done = answer(capsys)
    moves = [{"topic": bench.topic, "partition": 0, "from": 91, "to": 11, "records": 80}]
    assert (done["executed"], done["moves"]) == (True, moves)
    assert on_target() == 11

    checkpoint()
    code, shown = readiness()
    assert (code, shown["readiness"]) == (0, "ready")
    moved(30)
    assert on_target() == 31
    assert bench.run(*move_back, "--execute") == 0
    assert "nothing to move" in capsys.readouterr().out


def test_a_source_that_takes_connections_and_answers_nothing_holds_up_neither_groups_nor_a_failover(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The group has an offset on a partition without a map, of which only the source's end would say more."""
    bench.replicate(0, 4, Span(0, 700, 4))
    create(bench.target, f"us-east.{bench.topic}", 2)
    shop = GroupCheckpoints(
        group="shop",
        direction="forward",
        at=SETTLED,
        readiness="ahead_of_replication",
        offsets={bench.topic: {0: GroupOffset(10, 700, "exact"), 1: GroupOffset(5, None, "no_map", "note")}},
    )
    bench.checkpoints.write(FLOW, {shop.key: msgspec.json.encode(shop)})
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        state = json.loads(bench.state.read_text())
        state["clusters"]["us-east"]["bootstrap"] = f"127.0.0.1:{deaf.getsockname()[1]}"
        bench.state.write_text(json.dumps(state))

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


# topics


# lanes


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
    bench.states.stop(bench.lane(), Stop(reason="expired", upstream_offset=0, detail="too old", at=SETTLED))

    words = ["lanes", "reset", str(FLOW), bench.topic, "0", "--to", "target", "--reason", "expired", "--execute"]
    assert bench.run(*words) == 0, capsys.readouterr().err

    head = bench.chains.heads([bench.lane()])[bench.lane()]
    assert (head.generation, head.position) == (3, 637)
    assert bench.ledger.read(bench.lane()) == []


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


# transform


def test_a_rule_is_tried_on_the_newest_or_the_oldest_records_that_readers_see(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The partitions share the number; markers, and what was aborted or is not committed yet, are no records."""
    config = tmp_path / "replication.yaml"
    rule = "transforms: [{topics: [orders.*], fields: {n: {keep.last: 1}}}]"
    config.write_text(config.read_text().replace("{topics:", f"{{{rule}, topics:"))
    producer = Producer({"bootstrap.servers": bench.source.bootstrap, "transactional.id": bench.topic, **ORDERED})
    producer.init_transactions(20)
    for partition, first, count, ends in ((0, 0, 40, True), (1, 40, 3, True), (0, 43, 9, False), (0, 52, 5, None)):
        producer.begin_transaction()
        for number in range(first, first + count):
            producer.produce(bench.topic, json.dumps({"n": 1_000 + number}).encode(), partition=partition)
        assert producer.flush(20) == 0
        if ends is not None:
            (producer.commit_transaction if ends else producer.abort_transaction)(20)
            await_settled(bench.source.bootstrap, bench.topic)

    def tried(*words: str, topic: str = bench.topic) -> tuple[list[tuple[int, int]], set[str]]:
        assert bench.run("transform", "test", str(FLOW), topic, *words, "--json") == 0, capsys.readouterr().err
        found = answer(capsys)["records"]
        after = {part["after"] for each in found for part in each["parts"] if part["part"] == "n"}
        return [(each["partition"], each["upstream_offset"]) for each in found], after

    def places(zero: range, one: range) -> list[tuple[int, int]]:
        return [*((0, offset) for offset in zero), *((1, offset) for offset in one)]

    # A marker ends each of them; the other has the rest of the 14.
    assert tried("--records", "14")[0] == places(range(30, 40), range(3))
    assert tried("--records", "6", "--oldest")[0] == places(range(3), range(3))
    assert tried("--records", "1") == ([(1, 2)], {'"***2"'})
    create(bench.source, f"{bench.topic}.empty")
    assert tried(topic=f"{bench.topic}.empty") == ([], set())


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


# bad input


def test_a_silent_dynamodb_ends_with_exit_code_1(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    state = json.loads(bench.state.read_text())
    state["dynamodb"]["endpoint"] = "http://127.0.0.1:1"
    bench.state.write_text(json.dumps(state))

    assert bench.run("translate", str(FLOW), bench.topic, "0", "1", "--json") == 1
    assert answer(capsys)["error"]["retriable"] is True
