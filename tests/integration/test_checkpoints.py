"""A real consumer group goes from cluster to cluster and back, three times, and reads every record exactly once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer
from control import ControlWiring, handler

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.errors import LeaseLost
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, document_key
from mirrorless.mm2.internal_records import Heartbeat, OffsetSync
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition
from mirrorless.scheduled.runner import RoundReport, Task
from tests.support.lane_stage import ORDERED, LaneStage
from tests.support.readback import await_settled, read_topic

pytestmark = pytest.mark.integration

OTHERS = pytest.mark.soak("tests/integration/test_checkpoints.py::test_a_group_goes_there_and_back_three_times")
SECONDS = 30.0


@dataclass
class Crossing:
    """One topic replicated in this process, the scheduled function, and a group that reads on either side."""

    stage: LaneStage
    settings: FlowSettings
    group: str
    tasks: dict[str, Task] = field(default_factory=dict)
    _written: int = 0

    def __post_init__(self) -> None:
        self.wiring = ControlWiring(self.settings)
        self.begin_run()

    def begin_run(self) -> None:
        """What a schedule starts: warm clients, and no memory."""
        self.tasks = {task.name: task for task in self.wiring.tasks()}

    def do(self, task: str) -> RoundReport:
        """One round of a task."""
        report, end = RoundReport(), time.monotonic() + SECONDS
        self.tasks[task].act(report, lambda: end - time.monotonic())
        assert report.troubles == []
        return report

    def write(self, count: int, *, transactional: bool = False) -> None:
        """Records with growing numbers, over both partitions."""
        options: dict[str, Any] = {"bootstrap.servers": self.stage.source.bootstrap, **ORDERED}
        if transactional:
            options |= {"transactional.id": f"{self.stage.topic}-writer"}
        producer = Producer(options)
        if transactional:
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
        for number in range(self._written, self._written + count):
            producer.produce(self.stage.topic, str(number).encode(), b"k", partition=number % 2)
        self._written += count
        if transactional:
            producer.commit_transaction(SECONDS)
        assert producer.flush(SECONDS) == 0
        await_settled(self.stage.source.bootstrap, self.stage.topic)

    def replicate(self) -> None:
        """Everything that waits, in one event."""
        self.stage.replicate(self.stage.environment(), self.stage.event(), seconds=SECONDS)

    def read(self, cluster: KafkaCluster, count: int, **options: Any) -> list[int]:
        """A member of the group reads so many records at least, commits its position, and leaves."""
        topic = self.stage.topic if cluster is self.stage.source else self.stage.remote_topic
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
                **options,
            }
        )
        numbers: list[int] = []
        try:
            consumer.subscribe([topic])
            deadline = time.monotonic() + SECONDS
            while len(numbers) < count:
                assert time.monotonic() < deadline, f"{len(numbers)} of {count} records"
                for record in consumer.consume(100, timeout=0.2):
                    assert record.error() is None
                    numbers.append(int(record.value() or b""))
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return numbers

    def committed(self, cluster: KafkaCluster) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed on one side."""
        side = self.wiring.source if cluster is self.stage.source else self.wiring.target
        return side.groups.committed([self.group], lambda: SECONDS).get(self.group, {})

    def document(self, direction: Direction = "forward") -> GroupCheckpoints:
        """The group's stored document."""
        key = document_key(direction, self.group)
        return msgspec.json.decode(self.wiring.checkpoints.read(self.settings.name, key)[key], type=GroupCheckpoints)

    def records(self, cluster: KafkaCluster, topic: str) -> list[tuple[bytes, bytes]]:
        """All of an internal topic."""
        found = read_topic(cluster.bootstrap, topic)[0]
        return [(seen.content.key or b"", seen.content.value or b"") for seen in found]


@pytest.fixture
def crossing(stage: LaneStage, dynamodb: DynamoDbLocal, monkeypatch: pytest.MonkeyPatch) -> Crossing:
    """A flow of one topic with two partitions, and a group named after it; group offsets go both ways."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.endpoint)
    stage.create(stage.source, stage.topic, partitions=2)
    group = f"shop-{stage.topic}"
    return Crossing(
        stage,
        msgspec.structs.replace(
            stage.settings,
            aliases=(stage.source.alias, stage.target.alias),
            topics=(stage.topic,),
            groups=(group,),
            sync_group_offsets_enabled=True,
            sync_group_offsets_interval_seconds=0.001,
            sync_group_offsets_reverse_enabled=True,
            group_grace_seconds=0,
            heartbeats_topic_replication_factor=1,
            checkpoints_topic_replication_factor=1,
            emit_offset_syncs_enabled=True,
            offset_syncs_topic_replication_factor=1,
        ),
        group,
    )


@pytest.mark.parametrize(
    ("transactional", "protocol"),
    [
        (True, "consumer"),
        (False, "classic"),
        *(pytest.param(*each, marks=OTHERS) for each in ((True, "classic"), (False, "consumer"))),
    ],
)
def test_a_group_goes_there_and_back_three_times(crossing: Crossing, transactional: bool, protocol: str) -> None:  # noqa: FBT001  a parameter of the test
    source, target = crossing.stage.source, crossing.stage.target
    if protocol == "consumer" and not source.version.startswith("4"):
        pytest.skip("Kafka 3 has KIP-848 only as a preview that is switched off")
    options = {} if protocol == "classic" else {"group.protocol": "consumer"}
    read: list[int] = []

    for _ in range(3):
        crossing.write(20, transactional=transactional)
        crossing.replicate()
        read += crossing.read(source, 20, **options)
        crossing.do("checkpoints")
        crossing.do("checkpoints")
        assert crossing.document().readiness == "ready", crossing.document()

        crossing.write(10, transactional=transactional)
        crossing.replicate()
        read += crossing.read(target, 10, **options)
        crossing.begin_run()
        crossing.do("checkpoints")
        assert crossing.document("reverse").readiness == "ready", crossing.document("reverse")

    crossing.write(10, transactional=transactional)
    read += crossing.read(source, 10, **options)
    assert sorted(read) == list(range(100))


def handled(settings: FlowSettings) -> dict[str, Any]:
    """A run of the function, that has half a minute."""
    return handler(msgspec.to_builtins(settings), SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000))


def test_the_function_does_its_rounds_and_says_how_they_went(
    crossing: Crossing, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = crossing.stage.source, crossing.stage.target
    began = time.time_ns() // 1_000_000
    crossing.write(10)
    crossing.replicate()
    crossing.read(source, 10)

    reports = handled(
        msgspec.structs.replace(crossing.settings, window_seconds=2.0, emit_checkpoints_interval_seconds=1)
    )

    names = ("heartbeats", "checkpoints", "offset-syncs")
    assert [reports[name]["error"] for name in names] == ["", "", ""]
    assert reports["checkpoints"]["figures"]["groups"] == 1
    lines = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert {line.get("task") for line in lines} >= {*names}
    assert crossing.document().readiness == "ready"

    there, here = (Heartbeat.decode(*crossing.records(side, "heartbeats")[-1]) for side in (target, source))
    assert (there.source, there.target) == (here.target, here.source) == (source.alias, target.alias)
    assert min(there.timestamp, here.timestamp) >= began

    crossing.do("offset-syncs")  # of another environment, which repeats none
    syncs = [OffsetSync.decode(*each) for each in crossing.records(target, f"mm2-offset-syncs.{source.alias}.internal")]
    mine = [(each.partition, each.upstream, each.downstream) for each in syncs if each.topic == crossing.stage.topic]
    assert sorted(mine) == [(0, 4, 4), (1, 4, 4)]

    # A run whose lease was over before this one replaces none of its documents.
    for store, key in (
        (crossing.wiring.checkpoints, f"forward/{crossing.group}"),
        (crossing.wiring.documents, "task/lanes"),
    ):
        with pytest.raises(LeaseLost):
            store.write(crossing.settings.name, {key: b"late"}, epoch=1)


@pytest.mark.soak(
    "tests/unit/scheduled/test_standby.py::test_the_standby_does_nothing_while_the_home_runs_and_works_after_three_minutes_of_silence",
    "tests/unit/groups/test_round.py::test_groups_still_move_to_the_target_while_the_source_is_gone",
)
def test_the_standby_moves_a_group_that_its_lost_home_had_to_leave(crossing: Crossing) -> None:
    """The source and the home end together, and the home has committed nothing on the target."""
    target = crossing.stage.target
    home = msgspec.structs.replace(
        crossing.settings,
        emit_heartbeats_enabled=False,
        emit_offset_syncs_enabled=False,
        sync_group_offsets_enabled=False,
        function_region="us-east-1",
        standby_region="eu-west-1",
        emit_checkpoints_interval_seconds=0.1,
        window_seconds=1,
    )
    gone = msgspec.structs.replace(home.source, bootstrap="127.0.0.1:1")
    standby = msgspec.structs.replace(
        home, source=gone, stands_by=True, sync_group_offsets_enabled=True, sync_group_offsets_interval_seconds=0.001
    )
    crossing.write(20)
    crossing.replicate()
    crossing.read(crossing.stage.source, 20)
    assert handled(home)["checkpoints"]["error"] == ""

    assert handled(standby) == {}, "its home has just run"
    assert crossing.committed(target) == {}

    done = handled(msgspec.structs.replace(standby, standby_after_seconds=0))

    assert done["checkpoints"]["error"] == ""
    assert any("cannot be read" in each for each in done["checkpoints"]["troubles"]), "what is left out is told"
    assert [offset.offset for _, offset in sorted(crossing.committed(target).items())] == [10, 10]
