"""Records that no event can carry, on real clusters: read at the source where a batch has a gap, copied in order."""

from __future__ import annotations

import importlib
import random
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lab.esm.behaviour import LabBehaviour
from lab.esm.mappings import EventSourceMappings
from lab.functions.invocation import Invocation
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.chain.lane_state import LeftOut
from mirrorless.chain.run import Run
from mirrorless.clock import now_ms
from mirrorless.errors import Retriable
from mirrorless.lanes.gaps import gaps_of
from mirrorless.lanes.log_ends import STANDING_MS
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.protocol.replicate import Replicator
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from tests.support.lane_stage import Crash, LaneStage, at_step, crash
from tests.support.readback import await_settled
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/protocol/test_oversize_property.py::test_any_schedule_copies_records_that_no_event_can_carry_in_order_and_once"
)


@cache
def large(megabytes: int) -> bytes:
    """Incompressible: brokers judge what is compressed."""
    return random.Random(megabytes).randbytes(megabytes * 1_000_000)


def begin(
    stage: LaneStage, *, partitions: int = 1, limit: str = "30000000", transaction_timeout_ms: int = 10_000
) -> LaneStage:
    """Topics that take large records, and a flow that copies them: on a busy machine 18 MB take some seconds."""
    stage.settings = stage.changed(oversize="copy", from_earliest=True, transaction_timeout_ms=transaction_timeout_ms)
    stage.create(stage.source, stage.topic, partitions=partitions, max_message_bytes="30000000")
    stage.create(stage.target, stage.remote_topic, partitions=partitions, max_message_bytes=limit)
    return stage


def eventually(stage: LaneStage, event: bytes) -> None:
    """Deliver an event until it is accepted: a transaction may be open until its timeout."""
    end = time.monotonic() + 30
    while True:
        try:
            stage.replicate(stage.environment(), event)
        except Retriable:
            if time.monotonic() > end:
                raise
        else:
            return


def runs_of(stage: LaneStage, partition: int = 0) -> list[Run]:
    links = stage.chains.after(stage.lane(partition), 0, -1, limit=100)
    return [link for link in links if isinstance(link, Run)]


def test_records_of_5_to_20_mb_are_copied_in_order_between_those_of_a_mapping(
    stage: LaneStage, distant: KafkaCluster
) -> None:
    """One cluster is both ends, so that reads and writes cross the distance."""
    ends = {
        name: replace_settings(getattr(stage.settings, name), bootstrap=distant.bootstrap)
        for name in ("source", "target")
    }
    there = replace(stage, source=distant, target=distant, settings=stage.changed(**ends))
    far = begin(there, partitions=2, transaction_timeout_ms=20_000)
    far.write(large(5), b"1", large(20), b"3", b"4", large(8), large(6), b"7")
    far.write(b"0", large(8), b"2", partition=1)
    environment = far.environment()
    distant.link.round_trip_ms = 80
    try:
        for batch in ({"p0": [1, 3], "p1": [0]}, {"p0": [4]}, {"p0": [7], "p1": [2]}):
            outcome = far.replicate(environment, far.event(**batch), seconds=60)
            assert not outcome.stopped
    finally:
        distant.link.round_trip_ms = 0

    far.assert_mirrored()
    assert [gap for run in runs_of(far) for gap in gaps_of(run, 0)] == []
    assert [run.examined for run in runs_of(far)].count(False) == 1  # the batch without a gap


def replace_settings(settings: object, **changes: object) -> object:
    """A struct with other fields."""
    from msgspec.structs import replace as changed  # noqa: PLC0415  the other one is of dataclasses

    return changed(settings, **changes)  # type: ignore[type-var]  # a struct


def test_a_record_larger_than_the_targets_limit_stops_the_lane_before_what_the_event_carries(stage: LaneStage) -> None:
    """A transaction's time is longer than the event's: the refusal is not waited for until the records time out."""
    begin(stage, limit="10000000", transaction_timeout_ms=60_000)
    stage.write(b"0", large(6), b"2", large(12), b"4", b"5")
    event = stage.event(p0=[0, 2, 4, 5])

    outcome = stage.replicate(stage.environment(), event, seconds=45)
    again = stage.replicate(stage.environment(), event)

    stop = outcome.stopped[stage.topic, 0]
    assert (stop.reason, stop.upstream_offset) == ("refused", 3)
    assert again.stopped[stage.topic, 0] == stop
    assert stage.values() == [b"0", large(6), b"2"]

    stage.orders.quarantine(stage.lane(), *LeftOut.each(3))
    assert stage.replicate(stage.environment(), event).stopped == {}
    assert stage.values() == [b"0", large(6), b"2", b"4", b"5"]
    assert [(loss.first, loss.cause) for loss in stage.ledger.read(stage.lane())] == [(3, "quarantined")]


@pytest.mark.parametrize("step", some_of(STEPS, "committed", others=HELD))
def test_a_crash_at_any_step_neither_loses_nor_repeats_a_merged_record(stage: LaneStage, step: Step) -> None:
    begin(stage, transaction_timeout_ms=4_000)  # `eventually` waits for it
    stage.write(b"0", large(5), b"2")
    event = stage.event(p0=[0, 2])
    with at_step(step, crash), pytest.raises(Crash):
        stage.replicate(stage.environment(), event)

    eventually(stage, event)

    stage.assert_mirrored()


def test_aborted_records_and_markers_are_never_merged(stage: LaneStage) -> None:
    begin(stage)
    producer = Producer(
        {"bootstrap.servers": stage.source.bootstrap, "transactional.id": stage.topic, "message.max.bytes": 30_000_000}
    )
    producer.init_transactions(20)
    for commit, values in ((True, [b"0"]), (False, [b"2", large(5)]), (True, [large(6), b"6"]), (True, [b"8"])):
        producer.begin_transaction()
        for value in values:
            producer.produce(stage.topic, value, partition=0)
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
    await_settled(stage.source.bootstrap, stage.topic)

    environment = stage.environment()
    stage.replicate(environment, stage.event(p0=[0]))
    stage.replicate(environment, stage.event(p0=[6, 8]))

    stage.assert_mirrored()
    assert stage.values() == [b"0", large(6), b"6", b"8"]
    assert [(run.position, run.next, run.examined) for run in runs_of(stage)] == [(0, 1, False), (1, 9, True)]


def test_what_retention_took_before_a_gap_was_read_is_left_to_the_check_of_gaps(stage: LaneStage) -> None:
    begin(stage)
    stage.write(*(b"%d" % number for number in range(10)))
    environment = stage.environment()
    stage.replicate(environment, stage.event(p0=[0, 1]))
    event = stage.event(p0=[8, 9])
    admin = AdminClient({"bootstrap.servers": stage.source.bootstrap})
    for future in admin.delete_records([TopicPartition(stage.topic, 0, 5)]).values():
        future.result(20)

    stage.replicate(environment, event)

    assert stage.values() == [b"%d" % number for number in (0, 1, 5, 6, 7, 8, 9)]
    assert [gap for run in runs_of(stage) for gap in gaps_of(run, 0)] == [(2, 5)]


# The end of a log


@pytest.fixture
def control(stage: LaneStage) -> ModuleType:  # noqa: ARG001 -- it sets the variables
    """The function."""
    return importlib.import_module("control")


def round_of(stage: LaneStage, control: ModuleType, later_ms: int = STANDING_MS + 5_000) -> RoundReport:
    """One round of the task, so long after the last run."""
    settings = ControlSettings(
        flow=stage.settings,
        aliases=(stage.settings.source.alias, stage.settings.target.alias),
        topics=(stage.topic,),
        heartbeats_replication=False,
    )
    task = control.wire(settings)._oversize()
    task.clock = lambda: now_ms() + later_ms
    report, end = RoundReport(), time.monotonic() + 60
    task.act(report, lambda: end - time.monotonic())
    return report


def group_stands(stage: LaneStage, offset: int) -> None:
    """The mapping's group has committed this offset."""
    group = stage.settings.consumer_group(stage.topic)
    groups = KafkaGroups(stage.settings.source, flow=stage.settings.flow)
    end = time.monotonic() + 30
    place = (stage.topic, 0)
    groups.commit(group, {place: OffsetAndMetadata(offset)}, lambda: end - time.monotonic())


@pytest.mark.parametrize("passes", [True, pytest.param(False, marks=HELD)])
def test_a_record_at_the_end_of_a_log_is_copied_whether_mappings_pass_it_or_stand_before_it(
    stage: LaneStage, control: ModuleType, *, passes: bool
) -> None:
    begin(stage)
    stage.write(b"0", b"1", large(5))
    stage.replicate(stage.environment(), stage.event(p0=[0, 1]))
    group_stands(stage, 3 if passes else 2)

    early = round_of(stage, control, later_ms=0)
    report = round_of(stage, control)
    again = round_of(stage, control)

    assert early.figures["oversize-copied"] == 0
    assert (report.figures["oversize-copied"], again.figures["oversize-copied"]) == (1, 0)
    assert (report.figures["mappings-standing"], len(report.troubles)) == ((0, 0) if passes else (1, 1))
    stage.assert_mirrored()

    # What follows: by the mapping where it passes the record, otherwise by the task.
    stage.write(b"3")
    if passes:
        stage.replicate(stage.environment(), stage.event(p0=[3]))
    else:
        assert round_of(stage, control).figures["oversize-copied"] == 1
    stage.assert_mirrored()


@HELD
def test_a_record_that_the_mapping_will_deliver_is_left_to_it(stage: LaneStage, control: ModuleType) -> None:
    begin(stage)
    stage.write(b"0", b"1")
    stage.replicate(stage.environment(), stage.event(p0=[0]))
    group_stands(stage, 1)

    assert round_of(stage, control).figures == {"oversize-copied": 0, "mappings-standing": 0}
    assert stage.values() == [b"0"]


@HELD
def test_the_first_record_of_a_lane_may_be_one_that_no_event_can_carry(stage: LaneStage, control: ModuleType) -> None:
    begin(stage)
    stage.write(large(5), large(6))
    group_stands(stage, 2)

    assert round_of(stage, control).figures["oversize-copied"] == 2

    stage.write(b"2")
    stage.replicate(stage.environment(), stage.event(p0=[2]))
    stage.assert_mirrored()


# With a mapping, whichever of the two it does


@dataclass(slots=True)
class Forwarder:
    """The function behind a mapping: one environment."""

    stage: LaneStage
    environment: Replicator

    def invoke(self, event: bytes) -> Invocation:
        """Replicate an event; an error is a failed invocation."""
        self.stage.replicate(self.environment, event)
        return Invocation(status="success", payload=b"null", request_id="", duration_ms=0.0)


@pytest.mark.parametrize("oversize", ["pass", "stand"])
def test_every_record_arrives_in_order_whether_the_mapping_passes_large_ones_or_stands_before_them(
    stage: LaneStage, control: ModuleType, tmp_path: Path, oversize: Literal["pass", "stand"]
) -> None:
    begin(stage)
    stage.write(b"0", large(5), b"2", b"3", large(6))
    group = stage.settings.consumer_group(stage.topic)
    mappings = EventSourceMappings(
        functions={"forward": Forwarder(stage, stage.environment())},
        folder=tmp_path,
        behaviour=LabBehaviour(oversize=oversize, stop_grace_s=1.0),
    )
    try:
        created = mappings.create(
            FunctionName="forward",
            Topics=[stage.topic],
            SelfManagedEventSource={"Endpoints": {"KAFKA_BOOTSTRAP_SERVERS": [stage.source.bootstrap]}},
            SelfManagedKafkaEventSourceConfig={"ConsumerGroupId": group},
            StartingPosition="TRIM_HORIZON",
            MaximumBatchingWindowInSeconds=0,
        )
        uuid = str(created["UUID"])
        mappings.wait_enabled(uuid)
        stands_at = 5 if oversize == "pass" else 1
        end = time.monotonic() + 60
        while mappings.committed(uuid).get(0) != stands_at:
            assert time.monotonic() < end, mappings.committed(uuid)
            time.sleep(0.1)  # between two looks at a condition with a deadline
        delivered = stage.chains.heads([stage.lane()])[stage.lane()].position
        report = round_of(stage, control)
    finally:
        mappings.stop()

    assert delivered == (4 if oversize == "pass" else 1)
    assert report.figures["oversize-copied"] == 5 - delivered
    assert report.figures["mappings-standing"] == (oversize == "stand")
    stage.assert_mirrored()
