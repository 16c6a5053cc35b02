"""The writer on a real cluster, where somebody else writes to the same partition."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.target import KafkaTarget, producer_config
from mirrorless.adapters.kafka.writer import KafkaWriter
from mirrorless.errors import Retriable
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.kafka import Delivery, TopicPartition
from mirrorless.records.record import Record
from tests.support.lane_stage import LaneStage
from tests.support.readback import read_topic
from tests.support.topics import create_topic

pytestmark = pytest.mark.integration

RECORDS = [Record(offset=i, timestamp=1_700_000_000_000 + i, headers=[], value=b"ours %d" % i) for i in range(2_000)]


def deadline() -> float:
    return 30.0


def patient(settings: FlowSettings) -> FlowSettings:
    """The flow, with transactions that a busy machine does not end."""
    return replace(settings, transaction_timeout_ms=30_000)


@pytest.fixture
def topic(clusters: tuple[KafkaCluster, KafkaCluster]) -> str:
    return create_topic(clusters[1].bootstrap, f"shared-{uuid4().hex[:8]}", 2)


@contextmanager
def stranger(cluster: KafkaCluster, topic: str, partition: int) -> Iterator[None]:
    """Somebody who writes one record after the other to a partition."""
    over = threading.Event()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})

    def write() -> None:
        while not over.is_set():
            producer.produce(topic, b"theirs", partition=partition)
            producer.flush(10)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def places(cluster: KafkaCluster, topic: str, partition: int) -> dict[bytes | None, int]:
    """Where each of our records stands that a read_committed consumer finds."""
    seen = read_topic(cluster.bootstrap, topic)[partition]
    return {each.content.value: each.offset for each in seen if each.content.value != b"theirs"}


def test_a_lane_that_a_stranger_writes_to_is_looked_at_closely_and_its_places_are_true(
    clusters: tuple[KafkaCluster, KafkaCluster], flow_settings: FlowSettings, topic: str
) -> None:
    # Small batches let the stranger's records in between ours.
    settings = replace(patient(flow_settings), producer={"batch.num.messages": "100"})
    target, target_cluster = KafkaTarget(settings, environment=uuid4().hex), clusters[1]
    lanes = {(topic, 0): RECORDS, (topic, 1): RECORDS}
    end = time.monotonic() + 60

    with stranger(target_cluster, topic, 0):
        while True:
            writer = target.writer(deadline)
            found = writer.write(lanes, deadline)
            if found[topic, 0].unclear:
                break
            writer.abort(deadline)
            assert time.monotonic() < end, "the stranger never came in between"
        assert not found[topic, 1].unclear
        writer.abort(deadline)
        written = write_whole(target, lanes)

    for place in lanes:
        true = places(target_cluster, *place)
        assert list(written[place].downstream) == [true[record.value] for record in RECORDS]
    assert isinstance(written[topic, 1].downstream, range)


def write_whole(target: KafkaTarget, lanes: dict[TopicPartition, list[Record]]) -> dict[TopicPartition, Delivery]:
    """Write and commit as the protocol does it: again after what was unclear."""
    for _ in range(3):
        writer = target.writer(deadline)
        found = writer.write(lanes, deadline)
        if not any(each.unclear for each in found.values()):
            writer.commit(deadline)
            return found
        writer.abort(deadline)
    raise AssertionError("it stays unclear")


def test_a_refusal_in_no_report_keeps_the_transaction_from_committing_and_is_found_the_second_time(
    clusters: tuple[KafkaCluster, KafkaCluster], flow_settings: FlowSettings
) -> None:
    topic = create_topic(clusters[1].bootstrap, f"small-{uuid4().hex[:8]}", max_message_bytes="20000")
    # A batch per record, and as many in flight: the ones before and behind the refused one are taken.
    # What is behind it waits until it times out: sooner than our deadline.
    settings = replace(flow_settings, transaction_timeout_ms=10_000, producer={"batch.num.messages": "1"})
    target = KafkaTarget(settings, environment=uuid4().hex)
    records = [*RECORDS[:10], Record(offset=10, timestamp=1, headers=[], value=os.urandom(40_000)), *RECORDS[11:20]]

    writer = target.writer(deadline)
    found = writer.write({(topic, 0): records}, deadline)[topic, 0]
    assert found.unclear or found.refusal
    with pytest.raises(Retriable):
        writer.commit(deadline)
    target.discard_writers()

    again = target.writer(deadline).write({(topic, 0): records}, deadline)[topic, 0]
    assert again.refusal is not None


def test_while_a_batch_is_under_way_the_clients_thread_sleeps(
    far: LaneStage, distant: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane of many batches: `flush` alone would have the thread look for more to send thousands of times."""
    monkeypatch.setattr("mirrorless.adapters.kafka.writer.NO_PROGRESS_S", deadline())  # a busy broker pauses for longer
    far.create(far.target, far.remote_topic)
    wakeups = [0]

    def on_statistics(text: str) -> None:
        wakeups[0] = max([wakeups[0], *(each["wakeups"] for each in json.loads(text)["brokers"].values())])

    statistics = {"statistics.interval.ms": 10, "stats_cb": on_statistics}
    config = producer_config(patient(far.settings)) | statistics
    writer = KafkaWriter(config, transactional_id=uuid4().hex, deadline=deadline)
    batches = 20
    records = [
        Record(offset=i, timestamp=1_700_000_000_000, headers=[], value=os.urandom(1_000))
        for i in range(batches * 1_000)
    ]
    distant.link.round_trip_ms = 80

    delivery = writer.write({(far.remote_topic, 0): records}, deadline)[far.remote_topic, 0]
    writer.commit(deadline)

    assert len(delivery.downstream) == len(records)
    assert 0 < wakeups[0] < 50 * batches
