"""The function that reads scheduled topics, on real Kafka and DynamoDB Local: a run as its schedule starts it."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from struct import pack, unpack_from
from types import ModuleType
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Producer
from control import ControlWiring
from msgspec.structs import replace

from lab.faults.topic_changes import ChangedTopic
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.lane_log import KafkaBatchLaneLog, KafkaLaneLog
from mirrorless.adapters.kafka.source_log import KafkaRecordRanges
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import LaneState, LeftOut, Stop
from mirrorless.clock import Deadline
from mirrorless.copy.pull import PullRun
from mirrorless.copy.shards import ShardHolder, ShardLease
from mirrorless.failover.steps import judged_runs
from mirrorless.flow.naming import KEYS_VARIABLE, METRICS_PER_TOPIC_VARIABLE
from mirrorless.flow.settings import FlowSettings, PullSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.pause import order_pause, order_resume
from mirrorless.topics.scheduled_topics import write_scheduled_topics
from mirrorless.transforms.rules import KeySettings, Mask, Rule
from mirrorless.verify.lane import LaneVerification
from mirrorless.verify.parts import VerifyTask
from tests.support.batch_writers import write_header_name
from tests.support.lane_stage import ORDERED, Crash, LaneStage, at_step, crash
from tests.support.readback import assert_mirrored, await_settled, committed, links, read_topic
from tests.support.topics import create_topic, delete_before, transaction, transactional
from tests.support.tries import some_of
from tests.support.verified_lane import NO_RULES
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

_FRONT = 12
_LAST_DELTA_AT = 23


def cut_off(cluster: KafkaCluster, topic: str, partition: int, at: int) -> None:
    """Let a partition of one segment end before the batch that begins at an offset. The broker is not running."""
    (path,) = sorted(_folder(cluster, topic, partition).glob("*.log"))
    data, place = path.read_bytes(), 0
    while place + _FRONT < len(data):
        base, length = unpack_from(">qi", data, place)
        if base == at:
            break
        if base + unpack_from(">i", data, place + _LAST_DELTA_AT)[0] >= at:
            raise ValueError(f"a batch of {topic}-{partition} begins at {base}, and reaches over {at}")
        place += _FRONT + length
    path.write_bytes(data[:place])
    for kind in ("*.index", "*.timeindex", "*.snapshot"):
        for each in path.parent.glob(kind):
            each.unlink()


def _folder(cluster: KafkaCluster, topic: str, partition: int) -> Path:
    (broker,) = cluster.brokers
    return broker.log.parent / "data" / f"{topic}-{partition}"


def replace_by_format_1(cluster: KafkaCluster, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Let a partition hold these records as a broker of 2016 wrote them, some compressed. It is not running."""
    folder, half = _folder(cluster, topic, partition), len(values) // 2
    for each in folder.glob("0*"):
        each.unlink()
    plain = b"".join(_message(offset, value) for offset, value in enumerate(values[:half]))
    inner = gzip.compress(b"".join(_message(offset, value) for offset, value in enumerate(values[half:])))
    (folder / f"{0:020}.log").write_bytes(plain + _message(len(values) - 1, inner, attributes=1, key=None))


def _message(offset: int, value: bytes, *, attributes: int = 0, key: bytes | None = b"k") -> bytes:
    keyed = pack(">i", -1) if key is None else pack(">i", len(key)) + key
    body = pack(">bbq", 1, attributes, 1_500_000_000_000) + keyed + pack(">i", len(value)) + value
    return pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


SCHEDULES = pytest.mark.soak(
    "tests/unit/copy/test_pull_property.py::test_any_schedule_of_runs_of_a_shard_keeps_the_invariants"
)


@dataclass(slots=True)
class Context:
    """As much of Lambda's context as the function asks for."""

    seconds: float = 120.0
    aws_request_id: str = field(default_factory=lambda: uuid4().hex)

    def get_remaining_time_in_millis(self) -> int:
        """What is left."""
        return int(self.seconds * 1000)


@dataclass(slots=True, kw_only=True)
class PullStage:
    """A flow of scheduled topics with one prefix, and runs of its pull."""

    prefix: str
    settings: PullSettings
    stage: LaneStage
    documents: DynamoDbDocuments
    function: ModuleType
    partitions: dict[str, int] = field(default_factory=dict)

    @property
    def flow(self) -> FlowSettings:
        """The flow's settings."""
        return self.settings.flow

    def create(self, name: str, partitions: int = 2, **configs: str) -> str:
        """Create a scheduled topic; underscores in config names are dots."""
        topic = f"{self.prefix}-{name}"
        create_topic(self.stage.source.bootstrap, topic, partitions, **configs)
        self.schedule(self.partitions | {topic: partitions})
        return topic

    def schedule(self, partitions: Mapping[str, int]) -> None:
        """What `refresh_topics` writes."""
        write_scheduled_topics(self.documents, self.flow.name, partitions, stored=self.partitions)
        self.partitions = dict(partitions)

    def write(self, topic: str, *values: bytes | None, partition: int = 0, **options: Any) -> None:
        """Write records to the source."""
        config = {"bootstrap.servers": self.stage.source.bootstrap, "message.max.bytes": 30_000_000, **ORDERED}
        producer = Producer(config)  # a new one, which knows all partitions
        for value in values:
            producer.produce(topic, value, partition=partition, **{"key": b"k"} | options)
        assert producer.flush(30) == 0

    def run(self, seconds: float = 120.0, *, copy: str = "auto", **changes: Any) -> dict[str, Any]:
        """One run, in the environment of the one before; `changes` are of the schedule's input."""
        event = msgspec.to_builtins(replace(self.settings, **changes))
        event["flow"]["copying"] = copy
        found: dict[str, Any] = self.function.handler(event, Context(seconds))
        return found

    def cold(self) -> None:
        """Let the next run begin in an environment of its own."""
        self.function.warm.clear()

    def lease_ends(self) -> None:
        """What a minute does after a run was killed."""
        key = "pull/0/holder"
        dead = msgspec.json.decode(self.documents.read(self.flow.name, key)[key], type=ShardHolder)
        self.documents.release(self.flow.name, "pull/0/lease", holder=dead.holder)

    def lane(self, topic: str, partition: int = 0) -> Lane:
        """One lane."""
        return Lane(self.flow.name, topic, partition)

    def assert_mirrored(self, *topics: str) -> None:
        """Every lane is on the target byte for byte, once, in order, and the map has its place."""
        for topic in topics:
            remote = self.flow.remote_topic(topic)
            await_settled(self.stage.target.bootstrap, remote)
            source, target = (
                read_topic(self.stage.source.bootstrap, topic),
                read_topic(self.stage.target.bootstrap, remote),
            )
            assert source.keys() == target.keys()
            for partition, expected in source.items():
                assert_mirrored(self.lane(topic, partition), self.stage.chains, expected, target[partition])

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """What readers of the remote topic see."""
        remote = self.flow.remote_topic(topic)
        await_settled(self.stage.target.bootstrap, remote)
        return [each.content.value for each in read_topic(self.stage.target.bootstrap, remote)[partition]]


@pytest.fixture
def pull(stage: LaneStage, dynamodb: DynamoDbLocal, monkeypatch: pytest.MonkeyPatch) -> Iterator[PullStage]:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    flow = stage.changed(transaction_timeout_ms=10_000)  # a busy machine stands still for two
    documents = DynamoDbDocuments(dynamodb.client(), flow.tables.control)
    function = importlib.import_module("pull")
    function.warm.clear()
    documents.delete(flow.name, "pull/topics")
    for part in ("lease", "holder", "successor"):
        documents.delete(flow.name, f"pull/0/{part}")
    yield PullStage(
        prefix=f"pulled-{uuid4().hex[:8]}",
        settings=PullSettings(flow=flow, shard=0, shards=1),
        stage=stage,
        documents=documents,
        function=function,
    )
    function.warm.clear()


def test_a_run_brings_what_many_topics_have_and_the_next_one_only_what_is_new(pull: PullStage) -> None:
    topics = [pull.create(f"{number}") for number in range(4)]
    for topic in topics:
        for partition in range(2):
            pull.write(topic, b"", None, b"\x00\xff", *(b"%d" % i for i in range(50)), partition=partition)

    first = pull.run()
    pull.assert_mirrored(*topics)
    pull.write(topics[3], b"later", headers=[("n", b"1"), ("n", None)], partition=1)
    second = pull.run()

    assert (first["ended"], first["records"]) == ("drained", 8 * 53)
    assert first["transactions"] < 8
    assert (second["ended"], second["records"], second["transactions"]) == ("drained", 1, 1)
    pull.assert_mirrored(*topics)


def test_batches_pass_as_they_lie_beside_runs_by_records_and_are_proved_by_their_payload(
    pull: PullStage, dynamodb: DynamoDbLocal
) -> None:
    """Of a producer that compresses; the second run copies records, and the third passes the batches behind them."""
    topic = pull.create("orders", 1)
    producer = Producer({"bootstrap.servers": pull.stage.source.bootstrap, "compression.type": "lz4", "linger.ms": 50})
    reports = []
    for copy in ("auto", "records", "auto"):
        for _ in range(3):
            for i in range(40):
                producer.produce(topic, b"%d" % i * 30, key=b"k", partition=0)
            assert producer.flush(30) == 0
        reports.append(pull.run(copy=copy))

    assert [report["records"] for report in reports] == [120] * 3
    assert [report["passed_bytes"] == report["bytes"] for report in reports] == [True, False, True]
    pull.assert_mirrored(topic)
    head = pull.stage.chains.heads([pull.lane(topic)])[pull.lane(topic)]
    assert head.run is not None
    assert head.run.digest_of == "batches"
    flow = pull.flow
    verdict = LaneVerification(
        task=VerifyTask(settings=flow, topic=topic, partition=0, run_id="verify-1", against_source=True),
        chains=pull.stage.chains,
        ledger=DynamoDbLossLedger(dynamodb.client(), flow.tables.loss_ledger),
        target=KafkaLaneLog(flow.target, flow=flow.flow),
        source=KafkaLaneLog(flow.source, flow=flow.flow),
        target_batches=KafkaBatchLaneLog(flow.target, flow=flow.flow),
        source_batches=KafkaBatchLaneLog(flow.source, flow=flow.flow),
        note=lambda *_, **__: None,
        rules=NO_RULES,
    ).verify()
    assert (verdict.counts.proved, verdict.counts.compared, verdict.counts.found) == (360, 360, 0)
    assert (verdict.findings, verdict.notes) == ([], [])
    target, remote = KafkaRecordRanges(flow.target, flow=flow.flow), (flow.remote_topic(topic), 0)
    runs = links(pull.lane(topic), pull.stage.chains)
    assert [run.digest_of for run in runs] == ["batches", "records", "batches"]
    for run in runs:
        assert dict(judged_runs(target, {remote: run}, lambda: 20.0))[remote].state == "proved"
    assert list(target.batches({remote: (10_000, 10_001)}, lambda: 20.0)) == [(remote, [])]


def test_batches_of_a_topic_with_a_rule_are_opened_and_changed_and_those_beside_it_pass(
    pull: PullStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pii.json").write_text(json.dumps({"1": b64encode(bytes(32)).decode()}))
    monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path))
    masked, plain = pull.create("masked", 1), pull.create("plain", 1)
    rule = Rule(topics=(masked,), keep="value.n != `1`", fields={"mail": Mask(hmac="pii")})
    flow = replace(pull.flow, transforms=(rule,), keys={"pii": KeySettings()})
    values = [b'{"n":%d,"mail":"%d@example.com","text":"%s"}' % (n, n, b"x" * 2_000) for n in range(3)]
    for copy in ("auto", "records"):
        for topic in (masked, plain):
            pull.write(topic, *values)
        report = pull.run(flow=flow, copy=copy)
        assert report["records"] == 5
        assert (report["passed_bytes"] > 6_000) == (copy == "auto")

    pull.assert_mirrored(plain)
    copies = [json.loads(value or b"") for value in pull.values(masked)]
    assert [each["n"] for each in copies] == [0, 2] * 2
    assert [each["mail"] for each in copies[:2]] == [each["mail"] for each in copies[2:]]
    assert not [each for each in copies if "@" in each["mail"]]
    runs = links(pull.lane(masked), pull.stage.chains)
    assert [(run.digest_of, run.filtered) for run in runs] == [("records", ((1, 2),)), ("records", ((4, 5),))]
    assert [run.digest_of for run in links(pull.lane(plain), pull.stage.chains)] == ["batches", "records"]


def test_a_paused_flow_is_not_read_and_goes_on_where_it_was(pull: PullStage) -> None:
    topic, flow = pull.create("orders", 1), pull.settings.flow.name
    pull.write(topic, b"1")
    pull.run()
    order_pause(pull.documents, flow, reason="maintenance", now=1)
    try:
        pull.write(topic, b"2")
        paused = pull.run()
        assert (paused["ended"], paused["records"], paused["lanes"]) == ("drained", 0, 0)
        assert pull.values(topic) == [b"1"]
    finally:
        order_resume(pull.documents, flow, now=2)

    assert pull.run()["records"] == 1
    pull.assert_mirrored(topic)


def test_a_run_in_a_new_environment_goes_on_where_the_chains_stand(
    pull: PullStage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With metrics by topic, which is an option of the deployment."""
    topic = pull.create("orders")
    pull.write(topic, b"1", b"2")
    pull.run()
    pull.write(topic, b"3")
    pull.cold()
    assert '"topic"' not in capsys.readouterr().out
    monkeypatch.setenv(METRICS_PER_TOPIC_VARIABLE, "true")

    assert pull.run()["records"] == 1
    assert f'"topic":"{pull.flow.remote_topic(topic)}"' in capsys.readouterr().out
    pull.assert_mirrored(topic)


def test_a_partition_that_was_added_is_read_by_a_warm_environment(pull: PullStage) -> None:
    """Its clients remember the partitions of a topic for five minutes."""
    topic = pull.create("orders", 1)
    pull.write(topic, b"1")
    pull.run()
    ChangedTopic(bootstrap=pull.stage.source.bootstrap, topic=topic).add_partition()
    pull.write(topic, b"2", partition=1)
    pull.schedule({topic: 2})

    assert pull.run()["records"] == 1
    pull.assert_mirrored(topic)


def test_transactions_of_the_source_with_aborts_leave_no_work_behind(pull: PullStage) -> None:
    topic = pull.create("orders", 1)
    producer = transactional(pull.stage.source.bootstrap)
    for number in range(4):
        transaction(producer, topic, b"%d" % number, commit=number % 2 == 0)
    await_settled(pull.stage.source.bootstrap, topic)

    first, second = pull.run(), pull.run()

    assert (first["records"], second["records"], second["transactions"]) == (2, 0, 0)
    pull.assert_mirrored(topic)


@pytest.mark.parametrize("step", some_of(STEPS, "produced", "committed", others=SCHEDULES))
def test_a_run_that_is_killed_at_any_step_is_finished_by_the_next_one(pull: PullStage, step: Step) -> None:
    topics = [pull.create("orders"), pull.create("payments")]
    for topic in topics:
        pull.write(topic, *(b"%d" % i for i in range(20)))
    with at_step(step, crash), pytest.raises(Crash):
        pull.run()
    pull.cold()
    pull.write(topics[0], b"since")
    assert pull.run() == {"ended": "held"}
    pull.lease_ends()

    assert pull.run()["ended"] == "drained"
    pull.assert_mirrored(*topics)


def test_a_successor_takes_over_once_the_holder_gives_way(pull: PullStage, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = pull.create("orders")
    pull.write(topic, b"1")
    before = holder(pull, ends_in=60)
    assert before.take()
    assert not before.has_successor()
    warm_up, gave_way = PullRun.warm_up, list[bool]()

    def then_give_way(run: PullRun, deadline: Deadline) -> None:
        warm_up(run, deadline)
        gave_way.append(before.has_successor())
        before.release()

    monkeypatch.setattr(PullRun, "warm_up", then_give_way)

    assert pull.run()["records"] == 1
    assert gave_way == [True]
    pull.assert_mirrored(topic)


def holder(pull: PullStage, *, ends_in: int) -> ShardLease:
    """Another run of the shard."""
    now = time.time_ns() // 1_000_000
    return ShardLease(
        flow=pull.flow.name,
        shard=0,
        holder="another/run",
        ends_at=now + ends_in * 1000,
        documents=pull.documents,
        clock=lambda: time.time_ns() // 1_000_000,
    )


def test_a_record_that_fits_by_its_producers_codec_arrives_by_its_batch(pull: PullStage) -> None:
    """Text of random bytes: gzip and zstd make three quarters of it, lz4 nothing. A quarantined one opens its batch."""
    topic = pull.create("text", 2, max_message_bytes="3000000", compression_type="gzip")
    create_topic(pull.stage.target.bootstrap, pull.flow.remote_topic(topic), 2, max_message_bytes="1048588")
    large = [b64encode(os.urandom(990_000)) for _ in range(2)]
    pull.write(topic, b"before", large[0], b"behind")
    pull.write(topic, b"left out", large[1], b"behind", partition=1)
    pull.stage.orders.quarantine(pull.lane(topic, 1), *LeftOut.each(0))

    def arrived() -> bool:
        pull.run()  # a busy broker may answer late, which is tried again
        return pull.values(topic) == [b"before", large[0], b"behind"] and len(pull.values(topic, 1)) == 2

    eventually(arrived, "both lanes are copied")
    assert pull.stage.orders.stopped(pull.flow.name) == {}
    assert pull.values(topic, 1) == [large[1], b"behind"]


def test_a_header_name_that_is_no_text_passes_in_its_batch_and_by_records_stops_its_lane_alone(pull: PullStage) -> None:
    """The client has no answer to it: its exception ended the run, with the lanes of every other topic."""
    orders, payments = pull.create("orders", 1), pull.create("payments", 1)
    pull.write(orders, b"0")
    write_header_name(pull.stage.source.bootstrap, orders, b"na\xefve", b"1" * 60)
    pull.write(payments, b"1")

    pull.run(copy="records")

    stop = pull.stage.orders.read([pull.lane(orders)])[pull.lane(orders)].stop
    assert stop is not None
    assert (stop.reason, stop.upstream_offset) == ("refused", 1)
    pull.assert_mirrored(payments)

    pull.stage.orders.resume(pull.lane(orders))
    pull.cold()
    pull.run(copy="auto")
    log = KafkaBatchLaneLog(pull.flow.target, flow="test")
    chunks = log.read(pull.flow.remote_topic(orders), 0, OffsetRange(0, 4), lambda: 20.0)
    assert sum(b"na\xefve" in bytes(each.batch.payload) for chunk in chunks for each in chunk.records) == 1


def test_records_that_retention_has_deleted_before_they_were_read_are_left_to_the_gap_check(pull: PullStage) -> None:
    topic = pull.create("orders", 1)
    pull.write(topic, b"0", b"1")
    pull.run()
    pull.write(topic, b"2", b"3", b"4")
    delete_before(pull.stage.source.bootstrap, topic, 4)

    pull.run()

    assert pull.values(topic) == [b"0", b"1", b"4"]
    head = pull.stage.chains.heads([pull.lane(topic)])[pull.lane(topic)]
    assert head.run is not None
    assert list(head.run.gaps()) == [(2, 4)]
    assert not head.run.examined


def test_positions_are_committed_for_the_group_that_the_topics_mapping_would_have(pull: PullStage) -> None:
    topic = pull.create("orders", 2)
    pull.write(topic, b"0", b"1")

    pull.run()

    assert committed(pull.stage.source.bootstrap, pull.flow.consumer_group(topic), topic) == {0: 2}


def test_a_record_of_twenty_megabytes_is_copied(pull: PullStage) -> None:
    topic = pull.create("orders", 1, max_message_bytes="25000000")
    value = bytes(range(256)) * 78_125
    pull.write(topic, b"small", value, b"behind")

    pull.run()

    pull.assert_mirrored(topic)


def lane_check(stage: LaneStage) -> Callable[[RoundReport], None]:
    """The lane check of the scheduled function, of this stage's topic alone."""
    wiring = ControlWiring(msgspec.structs.replace(stage.settings, aliases=(stage.source.alias, stage.target.alias)))
    check = replace_fields(wiring._lanes(wiring.documents), topics=lambda _deadline: {stage.topic: 1})
    return lambda report: check.act(report, lambda: 30.0)


def test_a_log_that_lost_its_end_and_grew_past_the_position_is_stopped_where_it_parts_and_no_new_record_is_lost(
    pull: PullStage, stage: LaneStage
) -> None:
    """A broker says by its epochs where its log was cut: read by batches, by records, and by a mapping.

    Of the same restart: a log in the format of brokers before 2017.
    """
    kept = 8  # inside an event
    by_batches, by_records, of_old = (pull.create(name, 1) for name in ("batches", "records", "old"))
    stage.create(stage.source, stage.topic)
    copied = {by_batches: dict[str, Any](), by_records: {"copy": "records"}}
    old, new = [b"old %d" % n for n in range(50)], [b"new %d" % n for n in range(kept, 70)]
    forwarder, check = stage.wire(stage.settings), lane_check(stage)
    for topic, changes in copied.items():
        for first in range(0, 50, 4):
            pull.write(topic, *old[first : first + 4])  # a batch
        pull.schedule({topic: 1})
        pull.run(**changes)
    for first in range(0, 50, 4):
        stage.write(*old[first : first + 4])
    for first in range(0, 50, 10):
        stage.replicate(forwarder, stage.event(p0=range(first, min(first + 10, 50))))
    check(RoundReport())

    pull.stage.source.stop()
    for topic in (*copied, stage.topic):
        cut_off(pull.stage.source, topic, 0, kept)
    replace_by_format_1(pull.stage.source, of_old, 0, old)
    pull.stage.source.start()
    for topic in copied:
        pull.write(topic, *new)
    stage.write(*new)

    stops: dict[Lane, Stop | None] = {}
    for topic, changes in copied.items():
        pull.schedule({topic: 1})
        pull.cold()
        assert pull.run(**changes)["records"] == 0
        stops[pull.lane(topic)] = pull.stage.orders.read([pull.lane(topic)])[pull.lane(topic)].stop
    stage.replicate(forwarder, stage.event(p0=range(50, 60)))  # its poller reads on where it was
    check(report := RoundReport())
    stops[stage.lane()] = stage.orders.read([stage.lane()])[stage.lane()].stop
    assert [stop and (stop.reason, stop.upstream_offset) for stop in stops.values()] == [("truncated", kept)] * 3
    assert report.counts["logs-parted"] == 1

    # What the stops advise.
    for lane, stop in stops.items():
        assert stop is not None
        head = pull.stage.chains.heads([lane])[lane]
        plan = plan_reset(
            lane, head, LaneState(stop=stop), kept, reason="as advised", now=1, replicated=stop.replicated
        )
        assert plan.loss is None
        pull.stage.chains.reset(plan.link)
        pull.stage.orders.begin_anew(lane, plan.stop)
    for topic, changes in copied.items():
        pull.schedule({topic: 1})
        pull.cold()
        pull.run(**changes)
        assert pull.values(topic) == [*old, *new]
    forwarder.forget()
    stage.replicate(forwarder, stage.event(p0=range(kept, 70)))
    assert stage.values() == [*old, *new[50 - kept : 60 - kept], *new[: 50 - kept]]
    stop = stage.orders.read([stage.lane()])[stage.lane()].stop
    assert stop is not None
    assert (stop.upstream_offset, stop.replicated) == (50, ((50, 60),))

    # A log in which nothing is newer than message format 1 comes in the run that meets it.
    pull.schedule({of_old: 1})
    pull.cold()
    assert pull.run(continuous=False)["records"] == len(old)
    assert pull.values(of_old) == old
