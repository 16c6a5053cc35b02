"""Mapped lanes that stop before records that no event can carry, on real clusters."""

from __future__ import annotations

import importlib
import random
import time
from functools import cache
from types import ModuleType

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.chain.lane_state import RUNNING
from mirrorless.clock import now_ms
from mirrorless.lanes.log_ends import STANDING_MS
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from tests.support.lane_stage import Crash, LaneStage, at_step, crash
from tests.support.readback import await_settled
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants"
)


@cache
def large(megabytes: int) -> bytes:
    """Incompressible: brokers judge what is compressed."""
    return random.Random(megabytes).randbytes(megabytes * 1_000_000)


def begin(stage: LaneStage, partitions: int = 1) -> LaneStage:
    """Topics that take large records, and a flow that stops before them."""
    stage.settings = stage.changed(oversize="stop", from_earliest=True, transaction_timeout_ms=10_000)
    stage.create(stage.source, stage.topic, partitions=partitions, max_message_bytes="30000000")
    stage.create(stage.target, stage.remote_topic, partitions=partitions)
    return stage


def test_lanes_stop_where_their_mapping_passed_a_large_record_and_the_others_go_on(stage: LaneStage) -> None:
    """At the beginning of a log, in the middle of a batch and behind one; and the stop stays."""
    begin(stage, partitions=4)
    stage.write(large(8), b"1")
    stage.write(b"0", b"1", large(5), b"3", large(20), b"5", partition=1)
    stage.write(b"0", large(6), b"2", partition=2)
    stage.write(b"0", b"1", b"2", partition=3)
    environment = stage.environment()
    stage.replicate(environment, stage.event(p2=[0]))
    event = stage.event(p0=[1], p1=[0, 1, 3, 5], p2=[2], p3=[0, 1, 2])

    for _ in range(3):  # a delivery reads 8 MB, or one record that is larger
        outcome = stage.replicate(environment, event)
    again = stage.replicate(stage.environment(), event)

    stops = {partition: outcome.stopped[stage.topic, partition] for partition in range(3)}
    assert {partition: stop.upstream_offset for partition, stop in stops.items()} == {0: 0, 1: 2, 2: 1}
    assert {stop.reason for stop in stops.values()} == {"undelivered"}
    assert "8,000,001 bytes" in stops[0].detail
    assert (again.stopped, again.waiting) == (outcome.stopped, {})
    assert [stage.values(partition) for partition in range(4)] == [[], [b"0", b"1"], [b"0"], [b"0", b"1", b"2"]]


def test_markers_and_aborted_records_stop_nothing_however_large(stage: LaneStage) -> None:
    begin(stage)
    producer = Producer(
        {"bootstrap.servers": stage.source.bootstrap, "transactional.id": stage.topic, "message.max.bytes": 30_000_000}
    )
    producer.init_transactions(20)
    for commit, values in ((True, [b"0"]), (False, [b"2", large(5)]), (True, [b"5"]), (True, [large(6), b"8"])):
        producer.begin_transaction()
        for value in values:
            producer.produce(stage.topic, value, partition=0)
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
    await_settled(stage.source.bootstrap, stage.topic)
    environment = stage.environment()

    stage.replicate(environment, stage.event(p0=[0]))
    between = stage.replicate(environment, stage.event(p0=[5]))
    behind = stage.replicate(environment, stage.event(p0=[8]))

    assert between.stopped == {}
    assert behind.stopped[stage.topic, 0].upstream_offset == 7
    assert stage.values() == [b"0", b"5"]


def test_what_retention_took_from_a_gap_is_left_to_the_check_of_gaps(stage: LaneStage) -> None:
    begin(stage)
    stage.write(b"0", b"1", large(5), b"3", b"4", large(6), b"6")
    environment = stage.environment()
    stage.replicate(environment, stage.event(p0=[0, 1]))
    event = stage.event(p0=[4, 6])
    admin = AdminClient({"bootstrap.servers": stage.source.bootstrap})
    for future in admin.delete_records([TopicPartition(stage.topic, 0, 4)]).values():
        future.result(20)

    assert stage.replicate(environment, event).stopped[stage.topic, 0].upstream_offset == 5
    assert stage.values() == [b"0", b"1", b"4"]


@pytest.mark.parametrize("step", some_of(STEPS, "committed", others=HELD))
def test_a_crash_at_any_step_before_the_stop_neither_loses_nor_repeats_a_record(stage: LaneStage, step: Step) -> None:
    begin(stage)
    stage.write(b"0", large(5), b"2")
    event = stage.event(p0=[0, 2])
    with at_step(step, crash), pytest.raises(Crash):
        stage.replicate(stage.environment(), event)

    stop = stage.replicate(stage.environment(), event, seconds=40).stopped[stage.topic, 0]

    assert stop.upstream_offset == 1
    assert stage.values() == [b"0"]


def test_a_source_at_a_distance_is_read_before_what_follows_is_written(stage: LaneStage, distant: KafkaCluster) -> None:
    from msgspec.structs import replace  # noqa: PLC0415  used here only

    stage.settings = replace(stage.settings, source=replace(stage.settings.source, bootstrap=distant.bootstrap))
    stage.source = distant
    stage.__post_init__()
    begin(stage)
    stage.write(*(b"%d" % number for number in range(200)), large(8), b"last")
    offsets = [*range(0, 200, 2), 201]  # many gaps, of small records
    event, environment = stage.event(p0=offsets), stage.environment()
    distant.link.round_trip_ms = 80
    try:
        outcome = stage.replicate(environment, event, seconds=30)
    finally:
        distant.link.round_trip_ms = 0

    assert outcome.stopped[stage.topic, 0].upstream_offset == 200
    assert stage.values() == [b"%d" % number for number in range(0, 200, 2)]


# The end of a log


@pytest.fixture
def control(stage: LaneStage) -> ModuleType:  # noqa: ARG001 -- it sets the variables
    """The function."""
    return importlib.import_module("control")


def round_of(stage: LaneStage, control: ModuleType, later_ms: int = STANDING_MS + 5_000) -> RoundReport:
    """One look at the ends of logs, so long after the last run."""
    settings = ControlSettings(
        flow=stage.settings,
        aliases=(stage.settings.source.alias, stage.settings.target.alias),
        topics=(stage.topic,),
        heartbeats_replication=False,
    )
    check = control.wire(settings).log_ends
    check.clock = lambda: now_ms() + later_ms
    report, end = RoundReport(), time.monotonic() + 60
    check.look(report, lambda: end - time.monotonic())
    return report


def group_stands(stage: LaneStage, offset: int) -> None:
    """The mapping's group has committed this offset."""
    group = stage.settings.consumer_group(stage.topic)
    groups = KafkaGroups(stage.settings.source, flow=stage.settings.flow)
    end = time.monotonic() + 30
    groups.commit(group, {(stage.topic, 0): OffsetAndMetadata(offset)}, lambda: end - time.monotonic())


@pytest.mark.parametrize("passes", [True, pytest.param(False, marks=HELD)])
def test_the_last_record_of_a_log_stops_its_lane_whether_mappings_pass_it_or_stand_before_it(
    stage: LaneStage, control: ModuleType, *, passes: bool
) -> None:
    begin(stage)
    stage.write(b"0", b"1", large(8))
    stage.replicate(stage.environment(), stage.event(p0=[0, 1]))
    group_stands(stage, 3 if passes else 2)

    early = round_of(stage, control, later_ms=0)
    report = round_of(stage, control)

    assert (early.counts, early.troubles) == ({"stopped-lanes": 0}, [])
    assert report.counts == {"stopped-lanes": 1}
    stop = stage.orders.read([stage.lane()])[stage.lane()].stop
    assert stop is not None
    assert (stop.reason, stop.upstream_offset) == ("undelivered", 2)
    assert round_of(stage, control).counts == {"stopped-lanes": 1}


@HELD
def test_a_record_that_the_mapping_will_deliver_stops_nothing(stage: LaneStage, control: ModuleType) -> None:
    begin(stage)
    stage.write(b"0", b"1")
    stage.replicate(stage.environment(), stage.event(p0=[0]))
    group_stands(stage, 1)

    assert round_of(stage, control).counts == {"stopped-lanes": 0}
    assert stage.orders.read([stage.lane()]).get(stage.lane(), RUNNING).stop is None
