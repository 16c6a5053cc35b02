"""Applications that write to topics with every shape of record, in bursts, reproducible by seed.

A `Workload` writes to four topics:

    orders      6 partitions; keys, headers of all kinds, null keys and empty values, back-dated timestamps, bursts
    payments    3 partitions; transactions, a third of them aborted: gaps in the offsets
    customers   3 partitions, compacted; updates and tombstones
    audit-log   2 partitions, broker timestamps (LogAppendTime); small lines, and some records near Lambda's size limit

A `RecordStream` writes to one, for soak runs. Part of it is written in transactions, and some of those are aborted. The
source broker may die on the way: the stream waits for it, and what was not acknowledged is not counted on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import NewTopic

from lab.cloud import create_topics
from lab.faults.schedule import Schedule

NEARLY_TOO_LARGE = 4_000_000
"""Bytes of a value; in an event it is a third longer, and Lambda takes 6 MB."""
LARGE_RECORDS = 3
TIMEOUT_SECONDS = 60.0
EARLIEST = 1_600_000_000_000
"""Of back-dated timestamps, ms since the epoch."""

Value = tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """A source topic, and its share of the records."""

    partitions: int
    share: float
    configs: Mapping[str, str] = field(default_factory=dict)


SHAPES: Mapping[str, TopicShape] = {
    "orders": TopicShape(partitions=6, share=0.5),
    "payments": TopicShape(partitions=3, share=0.25),
    "customers": TopicShape(partitions=3, share=0.15, configs={"cleanup.policy": "compact"}),
    "audit-log": TopicShape(
        partitions=2,
        share=0.1,
        configs={"message.timestamp.type": "LogAppendTime", "max.message.bytes": "5000000"},
    ),
}


class Workload:
    """What applications write to one cluster."""

    def __init__(
        self,
        bootstrap: str,
        *,
        records: int,
        seed: int,
        seconds: float,
        topics: Sequence[str] = tuple(SHAPES),
        name: Callable[[str], str] = str,
    ) -> None:
        """Say what to write.

        Args:
            bootstrap: the cluster.
            records: to produce, aborted ones included.
            seed: of everything but the time.
            seconds: over which they are spread.
            topics: of `SHAPES`.
            name: what a topic is called on this cluster.
        """
        self._bootstrap = bootstrap
        self._shapes = {topic: SHAPES[topic] for topic in topics}
        self._name = name
        self._records = records
        self._seconds = seconds
        self._random = Random(seed)  # noqa: S311 -- a workload, not a secret
        self.transactional_id = f"payments-{time.time_ns()}"
        """Of the producers of transactions, one after the other."""
        self._produced = 0
        self._stopped = threading.Event()

    @property
    def produced(self) -> int:
        """Records produced so far."""
        return self._produced

    @property
    def progress(self) -> float:
        """Part of the records that has been produced, 0 to 1."""
        return self._produced / self._records

    def create_topics(self) -> None:
        """Create the topics that are not there."""
        topics = [
            NewTopic(self._name(topic), shape.partitions, config=dict(shape.configs))
            for topic, shape in self._shapes.items()
        ]
        create_topics(self._bootstrap, topics)

    def stop(self) -> None:
        """Let `produce` end early, in another thread."""
        self._stopped.set()

    def produce(self) -> None:
        """Produce everything; returns when all of it is acknowledged, or aborted.

        Raises:
            TimeoutError: when the cluster stops taking records.
            KafkaException: when it begins no transactions.
        """
        plain = self._producer({"enable.idempotence": True})
        transactional: Producer | None = None
        began = time.monotonic()
        large = LARGE_RECORDS if "audit-log" in self._shapes else 0
        while self._produced < self._records and not self._stopped.is_set():
            topic = self._random.choices(list(self._shapes), [shape.share for shape in self._shapes.values()])[0]
            if topic == "payments":
                transactional = self._transaction(transactional or self._transactional())
            else:
                self._burst(plain, topic)
            if large and self.progress > 1 - large / (LARGE_RECORDS + 1):
                large -= 1
                self._write(plain, "audit-log", (self._random.randbytes(NEARLY_TOO_LARGE), b"large", []))
            # Keep to the pace, so that faults meet a flow at work.
            self._stopped.wait(max(0.0, began + self.progress * self._seconds - time.monotonic()))
        if plain.flush(TIMEOUT_SECONDS):
            raise TimeoutError(f"{self._bootstrap} took no records for {TIMEOUT_SECONDS:.0f} s")

    def _transactional(self) -> Producer:
        producer = self._producer({"transactional.id": self.transactional_id})
        producer.init_transactions(TIMEOUT_SECONDS)
        return producer

    def _transaction(self, producer: Producer) -> Producer | None:
        """One burst in a transaction; the producer to go on with, or None where the cluster ended it."""
        try:
            producer.begin_transaction()
            self._burst(producer, "payments")
            producer.flush(TIMEOUT_SECONDS)  # aborted records must have been written, to leave their gap
            if self._random.random() < 1 / 3:
                producer.abort_transaction(TIMEOUT_SECONDS)
            else:
                producer.commit_transaction(TIMEOUT_SECONDS)
        except KafkaException:
            # A transaction that stood still for a minute is over. An application goes on with another producer, which
            # ends what this one left open; the audit reads what became of it.
            return None
        return producer

    def _burst(self, producer: Producer, topic: str) -> None:
        for _ in range(self._random.randint(1, 200)):
            self._write(producer, topic, getattr(self, "_" + topic.replace("-", "_"))())

    def _write(self, producer: Producer, topic: str, record: Value) -> None:
        value, key, headers = record
        # Some orders are entered late, with the time at which they were made; 0 is the present for the client.
        backdated = topic == "orders" and self._random.random() < 0.05  # noqa: PLR2004 -- some
        timestamp = EARLIEST + self._random.randrange(10**11) if backdated else 0
        partition = self._random.randrange(SHAPES[topic].partitions)
        while True:
            try:
                producer.produce(self._name(topic), value, key, partition, timestamp=timestamp, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)  # the queue is full until the cluster has taken some
        producer.poll(0)
        self._produced += 1

    def _orders(self) -> Value:
        random, number = self._random, b"%d" % self._produced
        key = random.choice((None, b"", b"customer-%d" % random.randrange(100), b"customer-%d" % random.randrange(100)))
        value = random.choice((b"", b'{"order": %s}' % number, random.randbytes(random.randint(1, 1_500))))
        headers: list[tuple[str, str | bytes | None]] = [("number", number)]
        if random.random() < 0.3:  # noqa: PLR2004 -- some orders carry a trace
            headers += [
                ("trace", random.randbytes(16)),
                ("trace", b""),
                ("käse-日本", bytes(range(256))),
                ("empty", None),
            ]
        return value, key, headers

    def _payments(self) -> Value:
        number = b"%d" % self._produced
        return b'{"payment": %s}' % number, number, [("content-type", b"application/json")]

    def _customers(self) -> Value:
        random = self._random
        value = None if random.random() < 0.2 else b'{"version": %d}' % self._produced  # noqa: PLR2004 -- tombstones
        return value, b"customer-%d" % random.randrange(500), [("number", b"%d" % self._produced)]

    def _audit_log(self) -> Value:
        return b"line %d" % self._produced, None, []

    def _producer(self, options: Mapping[str, object]) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "linger.ms": 5,
                "message.max.bytes": 8_000_000,
                "log_level": 0,  # brokers are killed on purpose; what matters is raised
                **options,
            }
        )


BURST = 250
"""Records between two looks at the clock."""
BURSTS_PER_SECOND = 8
ENOUGH_LEFT = 0.8
"""The part of the records before which a source that loses its end is written on for a while."""


class RecordStream:
    """The records of one schedule."""

    def __init__(self, bootstrap: str, topic: str, schedule: Schedule) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._schedule = schedule
        self._random = Random(schedule.seed)  # noqa: S311 -- a workload, not a secret
        self._produced = 0
        self._partitions = schedule.partitions
        self._acknowledged: dict[int, int] = {}
        """Of the burst under way: the offset behind the last record, by partition."""
        self.written: dict[int, int] = {}
        """The offset behind the last record that is acknowledged, and in no open transaction, by partition."""
        self._pause = threading.Event()
        self._writing = threading.Lock()
        self._anew = False
        """Whether the next burst needs producers of its own: brokers have lost what they knew of the old ones."""

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Nothing is written inside the block, and what is written behind it comes from other producers.

        The block gets whether enough is left to be written behind it.
        """
        with self._writing:
            yield self.progress() < ENOUGH_LEFT
            self._anew = True

    def write_on(self, count: int) -> None:
        """Write so many records in the block of `held`.

        Raises:
            TimeoutError: the cluster takes none.
        """
        producer = self._producer({"enable.idempotence": True})
        self._burst(producer, self._partitions, count)
        self._flush(producer)

    def lose(self, ends: Mapping[int, int]) -> None:
        """Records from these offsets on are gone, by partition."""
        self.written = {partition: min(end, ends.get(partition, end)) for partition, end in self.written.items()}

    def create_topic(self) -> None:
        """Create the source topic."""
        create_topics(self._bootstrap, [NewTopic(self._topic, self._partitions)])

    @property
    def partitions(self) -> int:
        """How many partitions are written to."""
        return self._partitions

    def spread(self, partitions: int) -> None:
        """Write to so many partitions from now on; they exist."""
        self._partitions = partitions

    def progress(self) -> float:
        """Part of the records that has been produced."""
        return self._produced / self._schedule.records

    def produce(self) -> None:
        """Produce everything; returns when every record is acknowledged or its transaction is over."""
        plain = self._producer({"enable.idempotence": True})
        transactional: Producer | None = None
        partitions = self._partitions
        while self._produced < self._schedule.records:
            with self._writing:
                if partitions != self._partitions or self._anew:
                    # Another client: this one sees new partitions minutes later.
                    plain, transactional = self._producer({"enable.idempotence": True}), None
                    partitions, self._anew = self._partitions, False
                kind = self._random.random()
                if kind < 0.6:  # noqa: PLR2004 -- most bursts are plain
                    self._burst(plain, partitions)
                    self._flush(plain)
                else:
                    commit = kind < 0.85  # noqa: PLR2004 -- the rest aborts
                    transactional = self._transaction(transactional, partitions, commit=commit)
            self._pause.wait(self._random.random() * 2 / BURSTS_PER_SECOND * self._schedule.pace)

    def _transaction(self, producer: Producer | None, partitions: int, *, commit: bool) -> Producer | None:
        """One burst in a transaction; the producer to go on with, or None where it broke with its broker."""
        try:
            if producer is None:
                producer = self._producer({"transactional.id": self._topic, "transaction.timeout.ms": 5000})
                producer.init_transactions(TIMEOUT_SECONDS)
            producer.begin_transaction()
            self._burst(producer, partitions)
            if commit:
                producer.commit_transaction(TIMEOUT_SECONDS)
                self.written = self.written | self._acknowledged
            else:
                producer.flush(TIMEOUT_SECONDS)  # aborted records must have been written, to leave their gap
                producer.abort_transaction(TIMEOUT_SECONDS)
        except KafkaException:
            # The broker died in the middle: it decides the transaction's fate, and the audit reads what became of it.
            return None
        return producer

    def _flush(self, producer: Producer) -> None:
        if producer.flush(TIMEOUT_SECONDS):
            raise TimeoutError(f"{self._topic}: the source took no records for {TIMEOUT_SECONDS:.0f} s")
        self.written = self.written | self._acknowledged

    def _burst(self, producer: Producer, partitions: int, count: int | None = None) -> None:
        self._acknowledged = {}
        for _ in range(count or self._random.randint(1, BURST)):
            value, key, headers = self._record()
            # One draw whatever the count is: what is written next stays that of the seed.
            partition = int(self._random.random() * partitions)
            producer.produce(self._topic, value, key, partition, headers=headers, on_delivery=self._note)
            self._produced += 1
        producer.poll(0)

    def _note(self, error: KafkaError | None, record: Message) -> None:
        partition, offset = record.partition(), record.offset()
        if error is None and partition is not None and offset is not None:
            self._acknowledged[partition] = offset + 1

    def _record(self) -> tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]:
        random = self._random
        number = b"%d" % self._produced
        value = random.choice((None, b"", number, number + random.randbytes(random.randint(1, 2_000))))
        key = random.choice((None, b"", number, b"key-%d" % random.randrange(50)))
        # Every record differs from every other, whatever its key and value are.
        headers: list[tuple[str, str | bytes | None]] = [("number", number)]
        if random.random() < 0.2:  # noqa: PLR2004 -- some records carry more
            headers += [("repeated", random.randbytes(8)), ("repeated", None), ("", b"")]
        return value, key, headers

    def _producer(self, options: dict[str, object]) -> Producer:
        return Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5, "log_level": 0, **options})
