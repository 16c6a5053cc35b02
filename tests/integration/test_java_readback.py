"""The copy as Kafka's own Java consumer reads it, on both sides.

Everything else here reads with the library that also wrote the records: a mistake that it makes both ways would go
unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from mirrorless.protocol.translate import OffsetMap, Translation
from tests.support.java_client import Given, Read, read_by_java
from tests.support.lane_stage import LaneStage
from tests.support.readback import read_topic

pytestmark = [pytest.mark.integration, pytest.mark.java]

EVENT_BYTES = 6 * 1024 * 1024
LARGE = b"\x00\xff" * (2 * 1024 * 1024)
"""4 MiB: one such record nearly fills an event, and a second does not fit."""
EVERY_BYTE = bytes(range(256))
QUIET = {"log_level": 0}


RECORDS = (
    Given(value=None),  # a tombstone
    Given(key=None),
    Given(key=b""),
    Given(value=b""),
    Given(key=None, value=None),
    Given(key=b"", value=b""),
    Given(key=EVERY_BYTE, value=EVERY_BYTE),
    Given(headers=(("twice", b"1"), ("other", b"2"), ("twice", b"1"), ("twice", b"0"))),
    Given(headers=(("bytes", EVERY_BYTE),)),
    *(Given(value=b"%d" % byte, headers=(("byte", bytes([byte])),)) for byte in (0, 1, 127, 128, 129, 255)),
    Given(headers=(("empty", b""), ("null", None), ("", b"no name"))),
    Given(headers=(("käse", b"1"), ("日本", b"2"), ("🦊", "🦊".encode()))),
    Given(timestamp=1),  # 1970
    Given(timestamp=1_000_000_000_000),  # 2001, before its predecessors
    Given(value=b"\x00"),
    Given(value=LARGE),
    Given(value=LARGE[::-1]),
)


HELD = pytest.mark.soak(
    "tests/integration/test_lane_hazards.py::"
    "test_a_topic_with_append_time_and_a_compressed_batch_arrives_with_its_own_timestamps"
)


@pytest.mark.parametrize("timestamps", ["CreateTime", pytest.param("LogAppendTime", marks=HELD)])
def test_java_reads_on_the_target_what_it_reads_on_the_source(
    timestamps: str, stage: LaneStage, tmp_path: Path
) -> None:
    """Null and empty, order and repetition, every header byte, 1 byte and 4 MiB, and gaps that aborted records left."""
    source, target, topic = stage.source.bootstrap, stage.target.bootstrap, stage.topic
    stage.create(stage.source, topic, 2, message_timestamp_type=timestamps, max_message_bytes="6000000")
    _produce(source, topic)
    environment = stage.environment(transaction_timeout_ms=60_000)
    for event in _events(stage):
        assert len(event) <= EVENT_BYTES
        assert not stage.replicate(environment, event, seconds=60).stopped

    written, arrived = read_by_java(source, topic, tmp_path), read_by_java(target, stage.remote_topic, tmp_path)

    # What was handed to the producer is what Java reads on the source: otherwise the rest would prove little.
    for partition in (0, 1):
        expected = [_stamped(given, read, timestamps) for given, read in zip(RECORDS, written[partition], strict=True)]
        assert [each.content for each in written[partition]] == expected
        assert {each.type for each in written[partition]} == {timestamps}
        offsets = [each.offset for each in written[partition]]
        assert offsets[-1] - offsets[0] > len(offsets), "aborted records and markers should have left gaps"

    # What Java reads on the target is the same, byte for byte and in order, and never stamped anew.
    assert arrived.keys() == written.keys()
    for partition, records in written.items():
        assert [each.content for each in arrived[partition]] == [each.content for each in records]
        assert {each.type for each in arrived[partition]} == {"CreateTime"}

    # Where it stands is where the map says.
    offset_map = OffsetMap(stage.chains)
    for partition, records in written.items():
        lane = stage.lane(partition)
        for up, down in zip(records, arrived[partition], strict=True):
            assert offset_map.downstream(lane, up.offset) == Translation(offset=down.offset, state="exact")
            assert offset_map.upstream(lane, down.offset) == Translation(offset=up.offset, state="exact")


def _produce(bootstrap: str, topic: str) -> None:
    """All records to both partitions, in transactions; between them, others that are aborted."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": topic, "message.max.bytes": 8_000_000, **QUIET}
    )
    producer.init_transactions(30)
    middle = len(RECORDS) // 2
    for records, commit in (
        (RECORDS[:middle], True),
        ((Given(value=b"aborted"),) * 3, False),
        (RECORDS[middle:], True),
        ((Given(value=b"aborted"),), False),
    ):
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message, failed: list[KafkaError] = failed) -> None:
            if error is not None:
                failed.append(error)

        producer.begin_transaction()
        for given in records:
            for partition in (0, 1):
                producer.produce(
                    topic,
                    given.value,
                    given.key,
                    partition,
                    on_delivery=delivered,
                    timestamp=given.timestamp,
                    headers=list(given.headers),
                )
        assert producer.flush(30) == 0  # aborted records must have been written, to leave their gap
        assert not failed
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def _events(stage: LaneStage) -> Iterator[bytes]:
    """All small records, and then each large one in an event of its own, which it nearly fills."""
    offsets = {
        p: [seen.offset for seen in found] for p, found in read_topic(stage.source.bootstrap, stage.topic).items()
    }
    yield stage.event(**{f"p{partition}": some[:-2] for partition, some in offsets.items()})
    for large in (-2, -1):
        for partition, some in offsets.items():
            yield stage.event(**{f"p{partition}": [some[large]]})


def _stamped(given: Given, read: Read, timestamps: str) -> Given:
    """What Java should read of a record that was produced so: the broker's own time cannot be foretold."""
    timestamp = given.timestamp if timestamps == "CreateTime" else read.timestamp
    return Given(key=given.key, value=given.value, headers=given.headers, timestamp=timestamp)
