"""Mapped lanes that stop before records that no event can carry, on real clusters."""

from __future__ import annotations

import importlib
import random
from functools import cache
from types import ModuleType

import msgspec
import pytest
from msgspec.structs import replace

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.clock import deadline_in, now_ms
from mirrorless.lanes.log_ends import STANDING_MS
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.scheduled.runner import RoundReport
from tests.support.lane_stage import LaneStage
from tests.support.readback import await_settled
from tests.support.topics import delete_before, transaction, transactional

pytestmark = pytest.mark.integration


@cache
def large(megabytes: int) -> bytes:
    """Incompressible: brokers judge what is compressed."""
    return random.Random(megabytes).randbytes(megabytes * 1_000_000)


def begin(stage: LaneStage, partitions: int = 1) -> LaneStage:
    """Topics that take large records, and a flow that stops before them."""
    stage.settings = stage.changed(oversize="stop", transaction_timeout_ms=10_000)
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
    producer = transactional(stage.source.bootstrap, message_max_bytes=30_000_000)
    for commit, values in ((True, [b"0"]), (False, [b"2", large(5)]), (True, [b"5"]), (True, [large(6), b"8"])):
        transaction(producer, stage.topic, *values, commit=commit)
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
    delete_before(stage.source.bootstrap, stage.topic, 4)

    assert stage.replicate(environment, event).stopped[stage.topic, 0].upstream_offset == 5
    assert stage.values() == [b"0", b"1", b"4"]


def test_a_source_at_a_distance_is_read_before_what_follows_is_written(stage: LaneStage, distant: KafkaCluster) -> None:
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
    settings = msgspec.structs.replace(
        stage.settings,
        aliases=(stage.settings.source.alias, stage.settings.target.alias),
        topics=(stage.topic,),
        heartbeats_replication_enabled=False,
    )
    check = control.wire(settings).log_ends
    check.clock = lambda: now_ms() + later_ms
    report = RoundReport()
    check.look(report, deadline_in(60))
    return report


def group_stands(stage: LaneStage, offset: int) -> None:
    """The mapping's group has committed this offset."""
    group = stage.settings.consumer_group(stage.topic)
    groups = KafkaGroups(stage.settings.source, flow=stage.settings.flow)
    groups.commit(group, {(stage.topic, 0): OffsetAndMetadata(offset)}, deadline_in(30))


def test_the_last_record_of_a_log_stops_its_lane_once_its_mapping_passed_it(
    stage: LaneStage, control: ModuleType
) -> None:
    begin(stage)
    stage.write(b"0", b"1", large(8))
    stage.replicate(stage.environment(), stage.event(p0=[0, 1]))
    group_stands(stage, 3)

    early = round_of(stage, control, later_ms=0)
    report = round_of(stage, control)

    assert (early.counts, early.troubles) == ({"stopped-lanes": 0}, [])
    assert report.counts == {"stopped-lanes": 1}
    stop = stage.orders.read([stage.lane()])[stage.lane()].stop
    assert stop is not None
    assert (stop.reason, stop.upstream_offset) == ("undelivered", 2)
    assert round_of(stage, control).counts == {"stopped-lanes": 1}
