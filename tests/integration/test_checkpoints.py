"""A real consumer group goes from cluster to cluster and back, three times, and reads every record exactly once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from control import ControlWiring, handler

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.groups import KafkaShadowGroups
from mirrorless.errors import LeaseLost
from mirrorless.flow.settings import ClusterSettings
from mirrorless.groups.checkpoints import Direction, GroupCheckpoints, GroupOffset, document_key
from mirrorless.groups.ownership import ClaimedOffsets
from mirrorless.mm2.internal_records import Checkpoint, Heartbeat, OffsetSync
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition
from mirrorless.reconcile.returning_groups import GroupsBack
from mirrorless.scheduled.runner import RoundReport, Task
from mirrorless.scheduled.settings import GROUP_GRACE_SECONDS, ControlSettings
from tests.support.lane_stage import ORDERED, LaneStage
from tests.support.readback import await_settled, read_topic

pytestmark = pytest.mark.integration

OTHERS = pytest.mark.soak("tests/integration/test_checkpoints.py::test_a_group_goes_there_and_back_three_times")
SECONDS = 30.0


@dataclass
class Crossing:
    """One topic replicated in this process, the scheduled function, and a group that reads on either side."""

    stage: LaneStage
    settings: ControlSettings
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

    def put(self, cluster: KafkaCluster, *offsets: int) -> None:
        """Commit by hand for a group without members: an offset a partition."""
        topic = self.stage.topic if cluster is self.stage.source else self.stage.remote_topic
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": self.group, "log_level": 0})
        places = [ClientPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def offsets(self, cluster: KafkaCluster) -> list[int]:
        """The committed offsets of one side, by partition."""
        return [committed.offset for _, committed in sorted(self.committed(cluster).items())]

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
        ControlSettings(
            flow=stage.settings,
            aliases=(stage.source.alias, stage.target.alias),
            topics=(stage.topic,),
            groups=(group,),
            sync_group_offsets_seconds=0.001,
            sync_group_offsets_reverse=True,
            group_grace_seconds=0,
            heartbeats_replication_factor=1,
            checkpoints_replication_factor=1,
            offset_syncs=True,
            offset_syncs_replication_factor=1,
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


@pytest.mark.soak(
    "tests/integration/test_mirror_client.py::test_a_group_is_sent_to_the_very_record_on_the_target_and_on_the_source_again"
)
def test_mm2_clients_find_the_groups_place(crossing: Crossing) -> None:
    """The checkpoints topics of both sides, as RemoteClusterUtils reads them."""
    source, target = crossing.stage.source, crossing.stage.target
    crossing.write(20)
    crossing.replicate()
    crossing.read(source, 20)
    crossing.do("checkpoints")
    there = [Checkpoint.decode(*each) for each in crossing.records(target, f"{source.alias}.checkpoints.internal")]
    mine = {(each.partition, each.upstream, each.downstream) for each in there if each.group == crossing.group}
    assert {each.topic for each in there if each.group == crossing.group} == {crossing.stage.remote_topic}
    assert mine == {(0, 10, 10), (1, 10, 10)}

    crossing.write(4)
    crossing.replicate()
    crossing.read(target, 4)
    crossing.do("checkpoints")

    back = [Checkpoint.decode(*each) for each in crossing.records(source, f"{target.alias}.checkpoints.internal")]
    last = {each.partition: each for each in back if each.group == crossing.group}
    assert {(each.topic, each.downstream) for each in last.values()} == {(crossing.stage.topic, 12)}


@pytest.mark.soak(
    "tests/unit/groups/test_round.py::test_a_group_with_members_is_never_written",
    "tests/integration/test_kafka_groups.py::test_a_group_is_active_while_it_has_a_member_and_then_empty",
)
def test_a_living_group_is_only_followed(crossing: Crossing) -> None:
    source, target = crossing.stage.source, crossing.stage.target
    crossing.write(20)
    crossing.replicate()
    crossing.read(target, 20)
    before = crossing.committed(target)
    member = Consumer({"bootstrap.servers": target.bootstrap, "group.id": crossing.group, "log_level": 0})
    try:
        member.subscribe([crossing.stage.remote_topic])
        deadline = time.monotonic() + SECONDS
        while not member.assignment():
            assert time.monotonic() < deadline
            member.poll(0.1)
        crossing.write(10)
        crossing.replicate()
        crossing.read(source, 30)

        crossing.do("checkpoints")

        assert crossing.document().readiness == "active_on_target"
        assert crossing.committed(target) == before
    finally:
        member.close()


@pytest.mark.soak(
    "tests/unit/groups/test_grace.py::test_an_application_that_has_committed_nothing_yet_is_not_moved_while_it_restarts"
)
def test_members_that_restart_find_no_offsets_that_they_have_not_committed(crossing: Crossing) -> None:
    """An application on the target with the name of a group of the source, before its first commit."""
    settings = msgspec.structs.replace(crossing.settings, group_grace_seconds=GROUP_GRACE_SECONDS)
    crossing = Crossing(crossing.stage, settings, crossing.group)
    source, target = crossing.stage.source, crossing.stage.target
    crossing.write(20)
    crossing.replicate()
    crossing.read(source, 20)
    member = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": crossing.group,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        member.subscribe([crossing.stage.remote_topic])
        deadline = time.monotonic() + SECONDS
        while not member.assignment():
            assert time.monotonic() < deadline
            member.poll(0.1)
        crossing.do("checkpoints")
    finally:
        member.close()

    crossing.begin_run()
    crossing.do("checkpoints")

    assert crossing.committed(target) == {}
    assert sorted(crossing.read(target, 20)) == list(range(20))


@pytest.mark.soak(
    "tests/unit/groups/test_ownership.py::test_another_application_with_the_groups_name_is_not_moved_when_its_members_leave",
    "tests/unit/groups/test_ownership.py::test_another_applications_offsets_are_handed_over_by_deleting_them",
)
def test_another_application_is_not_moved_until_its_offsets_are_deleted(crossing: Crossing) -> None:
    """It has the group's name, reads on the target, and its members leave while the group is at the source's end."""
    source, target = crossing.stage.source, crossing.stage.target
    crossing.write(20)
    crossing.replicate()
    crossing.put(target, 3, 7)
    crossing.read(source, 20)

    for _ in range(2):
        crossing.do("checkpoints")
        crossing.begin_run()
    assert crossing.offsets(target) == [3, 7]
    assert crossing.offsets(source) == [10, 10]
    assert (crossing.document().readiness, crossing.document().reread) == ("independent", 10)

    groups = KafkaShadowGroups(ClusterSettings(alias="target", bootstrap=target.bootstrap), flow="test")
    groups.delete([crossing.group], lambda: SECONDS)
    crossing.do("checkpoints")
    assert crossing.offsets(target) == [10, 10]
    assert crossing.document().readiness == "ready"


@pytest.mark.soak(
    "tests/unit/groups/test_round.py::test_a_group_of_any_name_is_synced_and_so_are_the_others",
    "tests/contract/test_documents.py::test_a_group_of_any_name_has_documents_of_many_parts_and_claims",
)
def test_a_group_whose_name_fits_no_key_crosses_beside_another(crossing: Crossing) -> None:
    """Kafka takes 32,767 bytes of a name; a key of DynamoDB has 1,024, and one such group failed every checkpoint."""
    both = msgspec.structs.replace(crossing.settings, groups=(f"{crossing.group}.*",))
    short, long = (Crossing(crossing.stage, both, f"{crossing.group}{tail}") for tail in ("", "ü" * 15_000))
    crossing.write(20)
    crossing.replicate()
    for each in (short, long):
        each.read(crossing.stage.source, 20)

    for _ in range(2):
        short.do("checkpoints")
        short.begin_run()

    assert [each.offsets(crossing.stage.target) for each in (short, long)] == [[10, 10], [10, 10]]
    assert long.document().readiness == "ready"


@pytest.mark.soak(
    "tests/unit/groups/test_ownership.py::test_a_group_that_a_reconcile_brought_back_goes_there_again",
    "tests/integration/spark/test_reconcile.py::test_groups_go_on_at_the_very_record_and_none_is_moved_back_or_under_its_members",
)
def test_a_group_brought_back_by_a_reconcile_goes_there_again(crossing: Crossing) -> None:
    """Group offsets go one way; the reconcile claims for the flow what it brings back."""
    one_way = msgspec.structs.replace(crossing.settings, sync_group_offsets_reverse=False)
    crossing = Crossing(crossing.stage, one_way, crossing.group)
    source, target = crossing.stage.source, crossing.stage.target
    crossing.write(20)
    crossing.replicate()
    crossing.read(source, 20)
    crossing.do("checkpoints")
    crossing.write(10)
    crossing.replicate()
    crossing.read(target, 10)
    crossing.do("checkpoints")
    assert crossing.document().readiness == "independent"

    def claim(claimed: ClaimedOffsets) -> None:
        crossing.wiring.checkpoints.write(one_way.name, {claimed.key: msgspec.json.encode(claimed)})

    lanes = {(crossing.stage.remote_topic, partition): crossing.stage.lane(partition) for partition in range(2)}
    ends = crossing.wiring.target.topics.ends(lanes, lambda: SECONDS)
    back = GroupsBack(
        chains=crossing.wiring.chains,
        source=crossing.wiring.source.groups,
        target=crossing.wiring.target.groups,
        include=[crossing.group],
        exclude=[],
        claim=claim,
    )
    groups, troubles = back.bring(lanes, {lanes[place]: end[1] for place, end in ends.items()}, lambda: lambda: SECONDS)
    assert ([group.readiness for group in groups], troubles) == (["ready"], [])
    assert crossing.offsets(source) == [15, 15]
    crossing.write(10)
    crossing.replicate()
    crossing.read(source, 10)
    crossing.begin_run()
    crossing.do("checkpoints")

    assert crossing.document().readiness == "ready"
    assert crossing.wiring.checkpoints.read(one_way.name, "claim/") == {}
    crossing.write(2)
    crossing.replicate()
    assert sorted(crossing.read(target, 2)) == [40, 41]


def test_an_empty_partition_and_one_without_readers_do_no_harm(crossing: Crossing) -> None:
    source, target = crossing.stage.source, crossing.stage.target
    crossing.stage.write(b"0", b"1", partition=0)
    crossing.replicate()
    empty = ClientPartition(crossing.stage.topic, 1, 0)
    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": crossing.group, "log_level": 0})
    consumer.commit(offsets=[ClientPartition(crossing.stage.topic, 0, 1), empty], asynchronous=False)
    consumer.close()

    crossing.do("checkpoints")

    remote = crossing.stage.remote_topic
    assert crossing.committed(target) == {(remote, 0): OffsetAndMetadata(1), (remote, 1): OffsetAndMetadata(0)}

    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": crossing.group, "log_level": 0})
    beyond = [ClientPartition(crossing.stage.topic, partition, 1_000) for partition in (0, 1)]
    consumer.commit(offsets=beyond, asynchronous=False)
    consumer.close()
    for _ in range(2):
        crossing.do("checkpoints")

    known = crossing.document().offsets[crossing.stage.topic]
    assert known == {partition: GroupOffset(1_000, None, "out_of_range") for partition in (0, 1)}
    assert crossing.committed(target) == {(remote, 0): OffsetAndMetadata(1), (remote, 1): OffsetAndMetadata(0)}


def test_heartbeats_stand_on_both_sides(crossing: Crossing) -> None:
    source, target = crossing.stage.source, crossing.stage.target
    began = time.time_ns() // 1_000_000

    crossing.do("heartbeats")

    there = Heartbeat.decode(*crossing.records(target, "heartbeats")[-1])
    here = Heartbeat.decode(*crossing.records(source, "heartbeats")[-1])
    assert (there.source, there.target) == (source.alias, target.alias)
    assert (here.source, here.target) == (target.alias, source.alias)
    assert min(there.timestamp, here.timestamp) >= began


def test_offset_syncs_name_the_last_record_of_each_lane_once(crossing: Crossing) -> None:
    crossing.write(10)
    crossing.replicate()
    for _ in range(2):
        crossing.do("offset-syncs")
    crossing.begin_run()
    crossing.do("offset-syncs")

    topic = f"mm2-offset-syncs.{crossing.stage.source.alias}.internal"
    found = [OffsetSync.decode(*each) for each in crossing.records(crossing.stage.target, topic)]
    mine = [(each.partition, each.upstream, each.downstream) for each in found if each.topic == crossing.stage.topic]
    assert sorted(mine) == [(0, 4, 4), (1, 4, 4)]


@dataclass
class Context:
    """Lambda's, of a run that has little time."""

    seconds: float

    def get_remaining_time_in_millis(self) -> int:
        """What is left."""
        return int(self.seconds * 1000)


def test_the_function_does_its_rounds_and_says_how_they_went(
    crossing: Crossing, capsys: pytest.CaptureFixture[str]
) -> None:
    crossing.write(10)
    crossing.replicate()
    crossing.read(crossing.stage.source, 10)
    event = msgspec.to_builtins(
        msgspec.structs.replace(crossing.settings, window_seconds=2.0, offset_syncs=False, checkpoints_seconds=1)
    )

    reports = handler(event, Context(30))

    assert {name: report["error"] for name, report in reports.items() if name in {"heartbeats", "checkpoints"}} == {
        "heartbeats": "",
        "checkpoints": "",
    }
    assert reports["checkpoints"]["figures"]["groups"] == 1
    lines = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert {line.get("task") for line in lines} >= {"heartbeats", "checkpoints"}
    assert crossing.document().readiness == "ready"
    # A run whose lease was over before this one replaces none of its documents.
    for store, key in (
        (crossing.wiring.checkpoints, f"forward/{crossing.group}"),
        (crossing.wiring.documents, "task/lanes"),
    ):
        with pytest.raises(LeaseLost):
            store.write(crossing.settings.name, {key: b"late"}, epoch=1)


# A home that is lost with the source


class _Time:
    """Lambda's context: half a minute."""

    def __init__(self) -> None:
        self._end = time.monotonic() + SECONDS

    def get_remaining_time_in_millis(self) -> int:
        return int((self._end - time.monotonic()) * 1000)


@pytest.mark.soak(
    "tests/unit/scheduled/test_standby.py::test_the_standby_does_nothing_while_the_home_runs_and_works_after_three_minutes_of_silence",
    "tests/unit/groups/test_round.py::test_groups_still_move_to_the_target_while_the_source_is_gone",
)
def test_the_standby_moves_a_group_that_its_lost_home_had_to_leave(crossing: Crossing) -> None:
    """The source and the home end together, while the group has a member on the target."""
    source, target = crossing.stage.source, crossing.stage.target
    home = msgspec.structs.replace(
        crossing.settings,
        heartbeats_seconds=None,
        offset_syncs=False,
        function_region="us-east-1",
        standby_region="eu-west-1",
        checkpoints_seconds=0.1,
        window_seconds=1,
    )
    flow = msgspec.structs.replace(home.flow, source=msgspec.structs.replace(home.flow.source, bootstrap="127.0.0.1:1"))
    standby = msgspec.structs.replace(home, flow=flow, stands_by=True)
    crossing.write(20)
    crossing.replicate()
    crossing.read(source, 20)
    member = Consumer({"bootstrap.servers": target.bootstrap, "group.id": crossing.group, "log_level": 0})
    try:
        member.subscribe([crossing.stage.remote_topic])
        deadline = time.monotonic() + SECONDS
        while not member.assignment():
            assert time.monotonic() < deadline
            member.poll(0.1)
        done = handler(msgspec.to_builtins(home), _Time())
        assert done["checkpoints"]["error"] == ""
    finally:
        member.close()
    assert crossing.committed(target) == {}, "the group had a member there"

    assert handler(msgspec.to_builtins(standby), _Time()) == {}, "its home has just run"
    assert crossing.committed(target) == {}

    silent = msgspec.structs.replace(standby, standby_after_seconds=0)
    done = handler(msgspec.to_builtins(silent), _Time())

    assert done["checkpoints"]["error"] == ""
    assert any("cannot be read" in each for each in done["checkpoints"]["troubles"]), "what is left out is told"
    assert crossing.offsets(target) == [10, 10]
