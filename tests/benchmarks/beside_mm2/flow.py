"""A producer at a fixed rate, and readers that note each record's arrival.

A value begins with its writer (8 bytes), its number (8 bytes) and the moment at which it was handed to the producer's
client (8 bytes, ns on the monotonic clock, which all threads of this process share); what is left is filler. A reader
reads one writer's records: what an earlier one has left under way does not count.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from tests.benchmarks.ground import reader

HEAD = struct.Struct(">QQQ")
TICK_S = 0.001
"""Between two looks at the clock; at 10,000 records a second some ten are due at each."""
SIZE = 100
POLL_S = 0.05
BATCH = 1000


@dataclass(slots=True)
class Writer:
    """A producer at a fixed rate, round robin over the partitions; it catches up where it was late."""

    bootstrap: str
    topic: str
    partitions: int
    rate: int
    """Records a second."""
    identity: int = field(default_factory=lambda: secrets.randbits(64))
    written: int = 0
    refused: int = 0
    """Records that the source did not take."""
    sent_at: list[int] = field(default_factory=list)
    """By number: when the record was handed to the client, ns."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no more; returns when the source has taken everything."""
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        options = {"enable.idempotence": True, "linger.ms": 1, "compression.type": "lz4", "log_level": 0}
        producer = Producer({"bootstrap.servers": self.bootstrap, **options})

        def on_delivery(error: KafkaError | None, _: object) -> None:
            self.refused += error is not None

        filler = bytes(SIZE - HEAD.size)
        began = time.monotonic_ns()
        while not self._over.wait(TICK_S):
            due = int((time.monotonic_ns() - began) * self.rate / 1e9)
            for number in range(self.written, due):
                moment = time.monotonic_ns()
                self.sent_at.append(moment)
                producer.produce(
                    self.topic,
                    HEAD.pack(self.identity, number, moment) + filler,
                    b"key-%08d" % number,
                    number % self.partitions,
                    on_delivery,
                )
                self.written = number + 1
            producer.poll(0)
        self.refused += producer.flush(30)


@dataclass(slots=True)
class Reader:
    """A consumer of the remote topic, from its present end on."""

    bootstrap: str
    topic: str
    partitions: int
    writer: Writer
    """Whose records are noted."""
    committed: bool = True
    seen: dict[int, int] = field(default_factory=dict)
    """By number: how often."""
    latencies: list[tuple[int, int]] = field(default_factory=list)
    """Of each record, when it was first seen: number, ns since it was handed to the producer."""
    ready: threading.Event = field(default_factory=threading.Event)
    failed: str = ""
    _complete: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()
        if not self.ready.wait(30):
            raise TimeoutError(f"{self.topic}: the reader has no offsets to begin at {self.failed}")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def duplicates(self) -> int:
        """Records that were seen again, each time counted."""
        return sum(self.seen.values()) - len(self.seen)

    def has_all(self, due: int) -> bool:
        """Whether every record below this number was seen."""
        while self._complete < due and self._complete in self.seen:
            self._complete += 1
        return self._complete >= due

    def _run(self) -> None:
        try:
            self._read()
        except KafkaException as exc:
            self.failed = str(exc)

    def _read(self) -> None:
        consumer = reader(
            self.bootstrap,
            isolation_level="read_committed" if self.committed else "read_uncommitted",
            auto_offset_reset="error",
            reconnect_backoff_max_ms=200,
            fetch_error_backoff_ms=20,
        )
        try:
            # The end as it is now: what is written from here on is read.
            places = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
            for place in places:
                place.offset = consumer.get_watermark_offsets(place, timeout=20)[1]
            consumer.assign(places)
            self.ready.set()
            while not self._over.is_set():
                # Waiting for the first alone: `consume` would wait for a full batch.
                first = consumer.poll(POLL_S)
                if first is None:
                    continue
                for message in (first, *consumer.consume(BATCH, 0)):
                    value = message.value()
                    if message.error() is None and value is not None:
                        self._note(value)
        finally:
            consumer.close()

    def _note(self, value: bytes) -> None:
        identity, number, sent = HEAD.unpack_from(value)
        if identity != self.writer.identity:
            return
        again = self.seen.get(number, 0)
        self.seen[number] = again + 1
        if not again:
            self.latencies.append((number, time.monotonic_ns() - sent))
