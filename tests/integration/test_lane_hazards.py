"""Each hazard of replication, on real clusters: what happens, what is told, and how the lane goes on."""

from __future__ import annotations

import gc
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab.servers.artifacts import classpath, java_command, kafka_jars
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.chain.lane_state import LaneState, LeftOut
from mirrorless.chain.run import Reset, Run
from mirrorless.errors import InDoubt, Retriable
from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.protocol.translate import OffsetMap
from tests.support.java_client import VERSION
from tests.support.lane_stage import Crash, LaneStage, at_step, crash
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

SCHEDULES = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants"
)
LARGE = pytest.mark.soak(
    "tests/integration/test_lane_refusals.py::test_a_record_that_is_too_large_stops_its_lane_wherever_it_stands"
)


INCOMPRESSIBLE = random.Random(7).randbytes(200_000)


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def threads() -> int:
    """Of this process, the client library's own included."""
    return len(list(Path("/proc/self/task").iterdir()))


def runs_of(stage: LaneStage, partition: int = 0) -> list[Run]:
    links = stage.chains.after(stage.lane(partition), 0, -1, limit=100)
    return [link for link in links if isinstance(link, Run)]


# What every record must survive


def test_a_topic_with_append_time_and_a_compressed_batch_arrives_with_its_own_timestamps(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, message_timestamp_type="LogAppendTime", compression_type="zstd")
    stage.write(*numbered(*range(50)), timestamp=1)

    stage.replicate(stage.environment(), stage.event())

    assert "message.timestamp.type" not in stage.configs(stage.remote_topic)
    assert stage.orders.read([stage.lane()]) == {stage.lane(): LaneState(begun=0)}, "without trouble nothing is noted"
    stage.assert_mirrored()


# A quota below the size of an event


def quota(cluster: KafkaCluster, *change: str) -> None:
    """Change what every client of a cluster may do."""
    command = (java_command(), "-cp", classpath(kafka_jars(VERSION)), "kafka.admin.ConfigCommand")
    entity = ("--alter", "--entity-type", "clients", "--entity-default")
    subprocess.run([*command, "--bootstrap-server", cluster.bootstrap, *entity, *change], check=True, timeout=120)


def test_an_event_that_is_too_much_for_a_quota_of_the_target_comes_through_in_portions(stage: LaneStage) -> None:
    """Whole, it would be aborted at the end of its transaction's time, and written again, for ever."""
    stage.create(stage.source, stage.topic, partitions=2)
    noise = random.Random(3)
    for partition in (0, 1):
        stage.write(*(noise.randbytes(9_000) for _ in range(150)), partition=partition)
    event = stage.event()
    environment = stage.environment(transaction_timeout_ms=5_000)
    environment.warm_up(20.0)
    quota(stage.target, "--add-config", "producer_byte_rate=100000")
    try:
        outcome = stage.replicate(environment, event, seconds=120.0)
    finally:
        quota(stage.target, "--delete-config", "producer_byte_rate")

    assert sum(run.records for run in outcome.runs) == 300
    assert max(run.throttled_ms for run in outcome.runs) > 1_000
    assert max(run.throttled_ms for run in runs_of(stage)) > 1_000  # as `status` reads it
    stage.assert_mirrored()


# Missing topics and partitions


def test_a_missing_remote_topic_gets_the_sources_partition_count_and_configs(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, partitions=3, cleanup_policy="compact", max_message_bytes="3000000")
    stage.write(*numbered(1, 2), partition=1)

    stage.replicate(stage.environment(), stage.event(p1=None))

    configs = stage.configs(stage.remote_topic)
    assert (configs["cleanup.policy"], configs["max.message.bytes"]) == ("compact", "3000000")
    stage.assert_mirrored()


def test_a_partition_that_the_target_lacks_is_added_before_a_record_needs_it(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, partitions=3)
    stage.create(stage.target, stage.remote_topic, partitions=1)
    stage.write(*numbered(1))
    stage.write(*numbered(2), partition=2)
    warm = stage.environment()
    stage.replicate(warm, stage.event(p0=None))

    stage.replicate(warm, stage.event())

    stage.assert_mirrored()


# Gaps, and a source that is not what it was


@pytest.mark.soak(
    "tests/unit/protocol/test_protocol.py::test_a_topic_that_was_created_again_stops_the_lane_at_its_first_record",
    "tests/unit/cli/test_stop_advice.py::test_the_advice_of_a_stop_brings_each_record_once",
)
def test_a_topic_created_again_stops_its_lane_until_a_reset_begins_a_new_generation(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, partitions=2)
    stage.write(*numbered(*range(10)))
    stage.write(*numbered(*range(10)), partition=1)
    warm = stage.environment()
    stage.replicate(warm, stage.event())
    old = {partition: stage.on_target()[partition][-1].offset for partition in (0, 1)}

    stage.delete(stage.source, stage.topic)
    stage.create(stage.source, stage.topic, partitions=2)
    stage.write(*numbered(100, 101, 102))

    for environment in (warm, stage.environment()):
        outcome = stage.replicate(environment, stage.event())
        assert (outcome.stopped[stage.topic, 0].reason, outcome.stopped[stage.topic, 0].upstream_offset) == (
            "contradiction",
            0,
        )
        assert outcome.runs == []
    assert stage.values() == numbered(*range(10))

    head = stage.chains.heads([stage.lane()])[stage.lane()]
    stage.chains.reset(
        Reset(lane=stage.lane(), generation=0, position=head.position, to_generation=1, next=0, reason="again", at=1)
    )
    stage.orders.begin_anew(stage.lane())
    outcome = stage.replicate(warm, stage.event())

    assert outcome.stopped == {}
    assert stage.values() == numbered(*range(10), 100, 101, 102)
    for upstream, expected in enumerate(stage.on_target()[0][10:]):
        assert OffsetMap(stage.chains).downstream(stage.lane(), upstream).offset == expected.offset
    assert OffsetMap(stage.chains).downstream(stage.lane(1), 9).offset == old[1]


# Records that the target or the client refuses


@pytest.mark.parametrize("neighbours", some_of((3, 3_000), 3, others=LARGE))
def test_a_record_too_large_for_the_target_stops_its_lane_while_the_others_go_on(
    stage: LaneStage, neighbours: int
) -> None:
    """Few neighbours are all in flight when the refusal comes; many are still being queued."""
    stage.create(stage.source, stage.topic, partitions=3)
    stage.create(stage.target, stage.remote_topic, partitions=3, max_message_bytes="100000")
    stage.write(*numbered(0, 1), INCOMPRESSIBLE, *numbered(3, 4))
    stage.write(*[b"y" * 900] * neighbours, partition=1)
    stage.write(*[b"z" * 900] * neighbours, partition=2)
    environment = stage.environment()

    outcome = stage.replicate(environment, stage.event())

    stop = outcome.stopped[stage.topic, 0]
    assert (list(outcome.stopped), stop.reason, stop.upstream_offset) == ([(stage.topic, 0)], "refused", 2)
    assert stage.orders.read([stage.lane()])[stage.lane()].stop == stop
    assert stage.values() == numbered(0, 1)
    assert [len(stage.values(partition)) for partition in (1, 2)] == [neighbours, neighbours]

    stage.orders.quarantine(stage.lane(), *LeftOut.each(2))
    assert stage.replicate(environment, stage.event(p0=[1, 2, 3, 4])).stopped == {}

    assert stage.values() == numbered(0, 1, 3, 4)
    assert [(loss.first, loss.next, loss.cause) for loss in stage.ledger.read(stage.lane())] == [(2, 3, "quarantined")]


# Open transactions and doubt


def test_an_open_transaction_left_by_a_crash_hides_a_doubt_until_the_broker_ends_it(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    stage.write(*numbered(0, 1, 2))
    with at_step("produced", crash), pytest.raises(Crash):
        stage.replicate(stage.environment(transaction_timeout_ms=6000), stage.event(p0=[0]))
    with at_step("committed", crash), pytest.raises(Crash):
        stage.replicate(stage.environment(), stage.event(p0=[0, 1]))

    with pytest.raises(InDoubt) as doubt:
        stage.replicate(stage.environment(), stage.event())
    assert doubt.value.retriable
    assert "orders" in doubt.value.where

    outcome = _until_settled(stage, stage.event())
    assert [(run.position, run.next) for run in outcome] == [(2, 3)]
    stage.assert_mirrored()


@pytest.mark.parametrize("step", some_of(STEPS, "prepared", "committed", others=SCHEDULES))
def test_a_crash_after_any_step_leaves_each_record_once(stage: LaneStage, step: Step) -> None:
    stage.create(stage.source, stage.topic, partitions=2)
    stage.write(*numbered(*range(5)))
    stage.write(*numbered(*range(3)), partition=1)
    with at_step(step, crash), pytest.raises(Crash):
        stage.replicate(stage.environment(), stage.event())
    in_doubt = [head.in_doubt for head in stage.chains.heads([stage.lane(), stage.lane(1)]).values()]
    assert in_doubt == [step in ("prepared", "committed")] * 2

    runs = _until_settled(stage, stage.event())

    assert bool(runs) == (step not in ("committed", "confirmed"))
    stage.assert_mirrored()


def test_the_same_environment_goes_on_after_an_exception(stage: LaneStage) -> None:
    """It forgets its producer; the next one has the same transactional id, which ends what the first left open."""
    stage.create(stage.source, stage.topic)
    stage.write(*numbered(0, 1, 2))
    environment = stage.environment(transaction_timeout_ms=60_000)
    event = stage.event()
    for step in ("produced", "settled", "prepared", "committed"):
        with at_step(step, crash), pytest.raises(Crash):
            stage.replicate(environment, event)

    assert stage.replicate(environment, event).runs == []

    stage.assert_mirrored()


# Rivals and zombies


@pytest.mark.parametrize("step", some_of(("position", "settled", "prepared"), "settled", "prepared", others=SCHEDULES))
def test_a_successor_does_the_whole_batch_while_the_first_is_paused(stage: LaneStage, step: Step) -> None:
    stage.create(stage.source, stage.topic)
    stage.write(*numbered(0, 1, 2))
    event, zombie = stage.event(), stage.environment()
    zombie.warm_up(10)

    def overtake() -> None:
        # The zombie's own transaction may hide what its successor wrote; it is not what is waited for here.
        stage.replicate(stage.environment(), event)

    if step == "prepared":
        with at_step(step, overtake), pytest.raises(Retriable):
            stage.replicate(zombie, event)
    else:
        with at_step(step, overtake):
            assert stage.replicate(zombie, event).runs == []

    stage.assert_mirrored()
    assert stage.replicate(zombie, event).runs == []


# Servers that are not there


@pytest.mark.soak(
    "tests/integration/test_flow_faults.py::test_records_wait_while_dynamodb_is_unavailable_and_then_go_on"
)
class TestDynamoDbAway:
    """What holds while DynamoDB is away. Its tables are on disk here, so that they outlive its process."""

    @pytest.fixture(scope="class")
    @classmethod
    def dynamodb(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoDbLocal]:
        """One that may be killed, beside the session's."""
        server = DynamoDbLocal(folder=tmp_path_factory.mktemp("dynamodb-on-disk"))
        try:
            server.start()
            yield server
        finally:
            server.stop()

    @pytest.mark.parametrize("step", ["produced", "prepared", "committed"])
    def test_a_batch_is_retriable_while_dynamodb_is_away_and_then_goes_on(
        self, stage: LaneStage, dynamodb: DynamoDbLocal, step: Step
    ) -> None:
        """Whether its run is not yet in the map, is prepared, or was committed."""
        stage.create(stage.source, stage.topic)
        stage.write(*numbered(0, 1, 2))
        environment = stage.environment()

        try:
            with at_step(step, dynamodb.kill), pytest.raises(Retriable, match="DynamoDB"):
                stage.replicate(environment, stage.event())
        finally:
            dynamodb.start()

        _until_settled(stage, stage.event())
        stage.assert_mirrored()


def test_a_target_broker_killed_between_flush_and_commit_costs_nothing_but_time(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    stage.write(*numbered(0, 1, 2))
    environment = stage.environment()

    def bounce() -> None:
        stage.target.kill()
        stage.target.start()

    committed: Sequence[Run] = ()
    with at_step("prepared", bounce):
        try:
            committed = stage.replicate(environment, stage.event(), seconds=20).runs
        except Retriable:
            committed = _until_settled(stage, stage.event())

    assert len(committed) <= 1
    stage.assert_mirrored()


# At least once


def test_at_least_once_keeps_map_and_order_without_transactions(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, partitions=2)
    stage.write(*numbered(*range(20)))
    stage.write(*numbered(*range(5)), partition=1)
    environment = stage.environment(delivery="at_least_once")

    stage.replicate(environment, stage.event(p0=[*range(12)], p1=None))
    stage.replicate(environment, stage.event())

    stage.assert_mirrored()
    # Nothing but records: no transaction has left a marker.
    assert [seen.offset for seen in stage.on_target()[0]] == [*range(20)]


def _until_settled(stage: LaneStage, event: bytes) -> Sequence[Run]:
    """Deliver again, as the mapping does, until no open transaction is in the way."""
    deadline = time.monotonic() + 25
    while True:
        try:
            return stage.replicate(stage.environment(), event).runs
        except Retriable:
            assert time.monotonic() < deadline
            time.sleep(0.2)  # between two deliveries with a deadline


# What a warm environment leaves behind


def test_a_discarded_producer_is_gone_at_once_with_its_threads(stage: LaneStage) -> None:
    """The function runs without the garbage collector: a cycle through the client would leak threads and sockets."""
    stage.create(stage.source, stage.topic)
    stage.write(b"1")
    environment = stage.environment()
    stage.replicate(environment, stage.event())
    before = threads()

    gc.disable()
    try:
        environment.forget()
        after = threads()
    finally:
        gc.enable()

    assert after < before
