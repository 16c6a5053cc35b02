"""Records on a source as other clients put them into batches: by a script, and thinned by compaction.

A script's orders are those of `tests/java/WriteRecords.java`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from msgspec.structs import replace

from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.flow.settings import ClusterSettings
from mirrorless.records.batch_records import packed
from mirrorless.records.record import Record
from tests.support.readback import Seen, await_settled, read_topic
from tests.support.topics import broker_default

COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "60000",
    "min_cleanable_dirty_ratio": "0.0001",
    "delete_retention_ms": "1",
}
"""Configs of a topic that is compacted as soon as its broker's cleaner runs."""


def write_by_librdkafka(  # noqa: C901 -- one line for each order
    bootstrap: str,
    topic: str,
    script: Sequence[Sequence[Any]],
    folder: Path,  # noqa: ARG001 -- as by Java
    *,
    batch_bytes: int = 1_000_000,
) -> None:
    """Write by librdkafka's producer, in batches of so many bytes at most."""
    producer: Any = None
    for number, words in enumerate(script):
        match words:
            case ["producer", codec, kind]:
                if producer is not None:
                    assert producer.flush(20) == 0
                config: dict[str, Any] = {"bootstrap.servers": bootstrap, "compression.type": codec, "log_level": 0}
                config |= {"enable.idempotence": kind != "plain", "linger.ms": 1000, "batch.size": batch_bytes}
                if kind == "transactional":
                    config["transactional.id"] = f"{topic}-{number}"
                producer = Producer(config)
                if kind == "transactional":
                    producer.init_transactions(20)
            case ["begin"]:
                producer.begin_transaction()
            case ["commit"]:
                producer.commit_transaction(20)
            case ["abort"]:
                assert producer.flush(20) == 0
                producer.abort_transaction(20)
            case ["flush"]:
                assert producer.flush(20) == 0
            case ["record", partition, given]:
                headers = list(given.headers)
                try:
                    producer.produce(
                        topic, given.value, given.key, partition, timestamp=given.timestamp, headers=headers
                    )
                except BufferError:
                    assert producer.flush(20) == 0
                    producer.produce(
                        topic, given.value, given.key, partition, timestamp=given.timestamp, headers=headers
                    )
    assert producer.flush(20) == 0
    await_settled(bootstrap, topic)


def write_compacted(bootstrap: str, topic: str) -> list[Seen]:
    """Write 301 records to a topic of these configs, and wait until some are compacted away; those that are left."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 1000})
    now = time.time_ns() // 1_000_000
    for i in range(300):
        producer.produce(topic, b"%d" % i, b"key %d" % (i % 7 if i % 3 else i), timestamp=now + i)
    assert producer.flush(20) == 0
    producer.produce(topic, b"a new segment", b"last", timestamp=now + 120_000)
    assert producer.flush(20) == 0
    with broker_default(bootstrap, log_cleaner_backoff_ms="100"):
        deadline = time.monotonic() + 60
        while len(there := read_topic(bootstrap, topic)[0]) > 200:
            assert time.monotonic() < deadline, "the log was not compacted"
            time.sleep(0.2)  # between two looks at a condition
    return there


def write_header_name(bootstrap: str, topic: str, name: bytes, value: bytes) -> None:
    """A batch in partition 0: a record with a header whose name is any bytes, and 40 without, with the same value."""
    at = 1_600_000_000_000
    plain = [Record(offset, at, [], b"k", value) for offset in range(1, 41)]
    some = [Record(0, at, [("x" * len(name), b"1")], b"k", value), *plain]
    (batch,) = packed(some, "none", max_bytes=10_000)
    payload = bytes(batch.payload).replace(b"x" * len(name), name)
    cluster = ClusterSettings(alias="any", bootstrap=bootstrap)
    end = time.monotonic() + 20
    writer = RawWriter(
        cluster,
        flow="test",
        transactional_id=f"{topic}-names",
        timeout_ms=20_000,
        deadline=lambda: end - time.monotonic(),
    )
    writer.write({(topic, 0): [replace(batch, payload=memoryview(payload))]}, lambda: end - time.monotonic())
    writer.commit(lambda: end - time.monotonic())
    writer.close()
