"""Each hazard of replication, on real clusters: what happens, what is told, and how the lane goes on."""

from __future__ import annotations

import gc
import random
import subprocess
from pathlib import Path

import pytest

from lab.servers.artifacts import classpath, java_command, kafka_jars
from lab.servers.kafka import KafkaCluster
from mirrorless.chain.lane_state import LaneState
from mirrorless.errors import InDoubt, Retriable
from mirrorless.protocol.hooks import STEPS, Step
from tests.support.java_client import VERSION
from tests.support.lane_stage import Crash, LaneStage, at_step, crash, numbered
from tests.support.readback import links
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

SCHEDULES = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants"
)


def threads() -> int:
    """Of this process, the client library's own included."""
    return len(list(Path("/proc/self/task").iterdir()))


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
        for attempt in range(3):
            # A request that times out behind a throttled answer may cost librdkafka its producer: the event then comes
            # again, as from its mapping, and finds what was committed of it.
            try:
                stage.replicate(environment, event, seconds=120.0)
                break
            except Retriable:
                if attempt == 2:
                    raise
    finally:
        quota(stage.target, "--delete-config", "producer_byte_rate")

    runs = [run for partition in (0, 1) for run in links(stage.lane(partition), stage.chains)]
    assert sum(run.records for run in runs) == 300
    assert len(runs) > 2
    assert max(run.throttled_ms for run in runs) > 1_000  # as `status` reads it
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

    outcome = stage.deliver(stage.event())
    assert [(run.position, run.next) for run in outcome.runs] == [(2, 3)]
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

    runs = stage.deliver(stage.event()).runs

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
