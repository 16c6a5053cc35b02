"""Refusals and doubts of a real target at a distance: every lane moves on or stops, at any delay."""

from __future__ import annotations

import random
import time
from base64 import b64encode
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.chain.lane_state import LeftOut
from mirrorless.errors import Retriable
from mirrorless.lanes.operator_actions import advice
from mirrorless.protocol.hooks import Step
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.records.record import Record
from tests.support.lane_stage import Crash, LaneStage, at_step, crash
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

ANYWHERE = pytest.mark.soak(
    "tests/unit/protocol/test_protocol.py::test_a_refused_record_among_many_is_found_in_few_requests"
)

TOGETHER = pytest.mark.soak(
    "tests/unit/protocol/test_protocol.py::test_the_lanes_of_one_crash_cost_one_fence_of_their_writer"
)

LANES = 24
RANDOM = random.Random(7)
FUNCTION_SECONDS = 60.0
"""A function's own limit, unless the operator sets another one."""


def deliver(stage: LaneStage, environment: Replicator, event: bytes, *, times: int) -> BatchOutcome:
    """Deliver as the mapping does, at most so many times."""
    for attempt in range(times):
        try:
            return stage.replicate(environment, event, seconds=FUNCTION_SECONDS)
        except Retriable:
            assert attempt < times - 1
    raise AssertionError


def test_records_that_are_only_too_large_together_all_arrive(far: LaneStage, distant: KafkaCluster) -> None:
    far.create(far.source, far.topic)
    far.create(far.target, far.remote_topic, max_message_bytes="100000")
    values = [RANDOM.randbytes(1_000) for _ in range(1_500)]
    far.write(*values)
    environment, event = far.environment(), far.event()
    distant.link.round_trip_ms = 80

    outcome = deliver(far, environment, event, times=3)

    assert outcome.stopped == {}
    distant.link.round_trip_ms = 0
    far.assert_mirrored()


@pytest.mark.parametrize(("round_trip_ms", "index"), [pytest.param(5, 3_000, marks=ANYWHERE), (80, 300)])
def test_a_record_that_is_too_large_stops_its_lane_wherever_it_stands_and_no_other(
    far: LaneStage, distant: KafkaCluster, index: int, round_trip_ms: float
) -> None:
    far.create(far.source, far.topic, partitions=2, max_message_bytes="2000000")
    far.create(far.target, far.remote_topic, partitions=2, max_message_bytes="1000000")
    values = [RANDOM.randbytes(800) for _ in range(3_500)]
    values[index] = RANDOM.randbytes(1_300_000)
    far.write(*values)
    far.write(*values[:20], partition=1)
    environment, event = far.environment(), far.event()
    distant.link.round_trip_ms = round_trip_ms

    outcome = deliver(far, environment, event, times=2)

    stop = outcome.stopped[far.topic, 0]
    assert (list(outcome.stopped), stop.reason, stop.upstream_offset) == ([(far.topic, 0)], "refused", index)
    assert far.orders.read([far.lane()])[far.lane()].stop == stop
    far.orders.quarantine(far.lane(), *LeftOut.each(index))
    assert deliver(far, environment, event, times=2).stopped == {}
    distant.link.round_trip_ms = 0
    del values[index]
    assert (far.values(), far.values(1)) == (values, values[:20])
    assert [(loss.first, loss.next, loss.cause) for loss in far.ledger.read(far.lane())] == [
        (index, index + 1, "quarantined")
    ]


def test_a_record_that_fits_by_its_producers_codec_arrives(stage: LaneStage) -> None:
    """Text of random bytes: gzip and zstd make three quarters of it, lz4 nothing."""
    stage.create(stage.source, stage.topic, max_message_bytes="2000000", compression_type="gzip")
    stage.create(stage.target, stage.remote_topic, max_message_bytes="1048588")  # as brokers have it
    large = [b64encode(RANDOM.randbytes(990_000)) for _ in range(2)]
    stage.write(b"before", large[0], *[b"between"] * 50, large[1], b"behind")
    environment = stage.environment()

    assert deliver(stage, environment, stage.event(), times=1).stopped == {}

    stage.assert_mirrored()


def test_a_refusal_that_the_deadline_cuts_off_is_found_by_the_next_attempt(
    far: LaneStage, distant: KafkaCluster
) -> None:
    far.create(far.target, far.remote_topic, max_message_bytes="20000")
    target = KafkaTarget(replace(far.settings, producer={"batch.num.messages": "1"}), environment=uuid4().hex)
    values = [b"before", RANDOM.randbytes(40_000), *[b"behind"] * 10]
    records = [Record(offset=i, timestamp=1, headers=[], value=value) for i, value in enumerate(values)]

    writer, place = target.writer(lambda: FUNCTION_SECONDS), (far.remote_topic, 0)
    distant.link.round_trip_ms = 4_000
    ends = time.monotonic() + 1.0
    with pytest.raises(Retriable, match=r"not acknowledged in time.*transaction\.timeout\.ms"):
        writer.write({place: records}, lambda: ends - time.monotonic())
    target.discard_writers()
    distant.link.round_trip_ms = 0

    again = target.writer(lambda: FUNCTION_SECONDS).write({place: records}, lambda: FUNCTION_SECONDS)[place]
    assert again.refusal is not None


def test_a_compacted_topics_old_records_without_keys_are_left_out_by_one_order_in_the_brokers_words(
    stage: LaneStage,
) -> None:
    """By the Kafka client, which keeps the broker's words and the kind of its error to itself."""
    stage.create(stage.source, stage.topic)
    stage.create(stage.target, stage.remote_topic, cleanup_policy="compact")
    producer, count = Producer({"bootstrap.servers": stage.source.bootstrap}), 2_000
    for number in range(count):
        producer.produce(stage.topic, b"%d" % number, b"k" if number % 4 == 3 else None, 0)
    assert producer.flush(20) == 0
    environment, event = stage.environment(), stage.event()

    stop = deliver(stage, environment, event, times=2).stopped[stage.topic, 0]

    assert (stop.upstream_offset, stop.cause) == (0, "INVALID_RECORD")
    assert "Compacted topic cannot accept message without key" in stop.detail
    stage.orders.quarantine(stage.lane(), LeftOut(first=0, next=count, cause=stop.cause, why=stop.detail))
    began = time.monotonic()
    assert deliver(stage, environment, event, times=2).stopped == {}
    assert time.monotonic() - began < FUNCTION_SECONDS
    assert stage.values() == [b"%d" % number for number in range(3, count, 4)]


def test_a_timestamp_that_the_topic_does_not_take_is_told_from_other_refusals(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    stage.create(stage.target, stage.remote_topic, message_timestamp_before_max_ms="3600000")
    producer, now = Producer({"bootstrap.servers": stage.source.bootstrap}), int(time.time() * 1000)
    for number, age in enumerate((0, 0, 86_400_000, 0)):
        producer.produce(stage.topic, b"%d" % number, b"k", 0, timestamp=now - age)
    assert producer.flush(20) == 0

    stop = deliver(stage, stage.environment(), stage.event(), times=2).stopped[stage.topic, 0]

    assert (stop.upstream_offset, stop.cause) == (2, "INVALID_TIMESTAMP")
    assert "message.timestamp.before.max.ms" in advice(stage.lane(), stop)
    assert stage.values() == [b"0", b"1"]


# Doubts


@pytest.mark.parametrize("step", some_of(("prepared", "committed"), "committed", others=TOGETHER))
def test_the_lanes_of_one_crash_are_settled_together(far: LaneStage, distant: KafkaCluster, step: Step) -> None:
    """A producer, an admin client and a consumer for each lane took 89 s for 48 lanes at 80 ms, beyond a deadline."""
    far.create(far.source, far.topic, partitions=LANES)
    for partition in range(LANES):
        far.write(b"%d" % partition, partition=partition)
    event = far.event()
    with at_step(step, crash), pytest.raises(Crash):
        far.replicate(far.environment(), event)
    successor = far.environment()
    distant.link.round_trip_ms = 80
    before = distant.link.connections

    outcome = far.replicate(successor, event, seconds=60.0)

    opened = distant.link.connections - before
    assert len(outcome.runs) == (LANES if step == "prepared" else 0)
    assert outcome.stopped == {}
    assert opened <= 20, "of the fence, of the look, and of the successor's own writer"
    distant.link.round_trip_ms = 0
    far.assert_mirrored()
