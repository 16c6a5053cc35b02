"""Applications that write to topics with every shape of record, in bursts, reproducible by seed.

    orders      6 partitions; keys, headers of all kinds, null keys and empty values, back-dated timestamps, bursts
    payments    3 partitions; transactions, a third of them aborted: gaps in the offsets
    customers   3 partitions, compacted; updates and tombstones
    audit-log   2 partitions, broker timestamps (LogAppendTime); small lines, and some records near Lambda's size limit

A topic of the soak has some of it all, or people, with secrets in each place that a rule can mask. Brokers may die on
the way: the workload waits for them, and what was not acknowledged is not counted on.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from lab.cloud import create_topics

NEARLY_TOO_LARGE = 4_000_000
"""Bytes of a value; in an event it is a third longer, and Lambda takes 6 MB."""
LARGE_RECORDS = 3
TIMEOUT_SECONDS = 60.0
EARLIEST = 1_600_000_000_000
"""Of back-dated timestamps, ms since the epoch."""
BURST = 200
"""Records between two looks at the clock, at most."""
ENOUGH_LEFT = 0.8
"""The part of the records before which a source that loses its end is written on for a while."""

HeaderList = list[tuple[str, str | bytes | None]]
WrittenRecord = tuple[bytes | None, bytes | None, HeaderList]
"""Value, key and headers."""


def _order(random: Random, number: bytes) -> WrittenRecord:
    key = random.choice((None, b"", b"customer-%d" % random.randrange(100), b"customer-%d" % random.randrange(100)))
    value = random.choice((b"", b'{"order": %s}' % number, random.randbytes(random.randint(1, 1_500))))
    headers: HeaderList = [("number", number)]
    if random.random() < 0.3:  # noqa: PLR2004 -- some orders carry a trace
        trace = ("trace", random.randbytes(16))
        headers += [trace, ("trace", b""), ("käse-日本", bytes(range(256))), ("empty", None)]
    return value, key, headers


def _payment(_: Random, number: bytes) -> WrittenRecord:
    return b'{"payment": %s}' % number, number, [("content-type", b"application/json")]


def _customer(random: Random, number: bytes) -> WrittenRecord:
    value = None if random.random() < 0.2 else b'{"version": %s}' % number  # noqa: PLR2004 -- tombstones
    return value, b"customer-%d" % random.randrange(500), [("number", number)]


def _line(_: Random, number: bytes) -> WrittenRecord:
    return b"line %s" % number, None, []


def _anything(random: Random, number: bytes) -> WrittenRecord:
    value = random.choice((None, b"", number, number + random.randbytes(random.randint(1, 2_000))))
    key = random.choice((None, b"", number, b"key-%d" % random.randrange(50)))
    # Every record differs from every other, whatever its key and value are.
    headers: HeaderList = [("number", number)]
    if random.random() < 0.2:  # noqa: PLR2004 -- some records carry more
        headers += [("repeated", random.randbytes(8)), ("repeated", None), ("", b"")]
    return value, key, headers


def _person(secret: bytes, random: Random, number: bytes) -> WrittenRecord:
    """A customer, in compact JSON; all that a rule masks or drops has `secret` in it, and nothing else has."""
    planted = secret.decode()
    someone = f"{planted}-{random.randrange(50)}"
    headers: HeaderList = [("number", number), ("user-ip", someone.encode())]
    headers += [("region", random.choice((b"internal", b"eu", b"eu", b"eu"))), ("repeated", None)]
    key = random.choice((None, someone.encode(), someone.encode()))
    if random.random() < 0.1:  # noqa: PLR2004 -- tombstones
        return None, key, headers
    country = random.choice(("DE", "DE", "FR"))
    customer: Any = {"name": f"Zoë {planted}", "email": f"{someone}@example.com", "since": "@"}
    if random.random() < 0.03:  # noqa: PLR2004 -- a rule cannot be applied to some
        customer = planted
    person = {
        "country": country,
        "number": int(number),
        "customer": customer,
        "card": f"{planted}{random.randrange(10_000):04}",
        "items": [{"note": planted, "price": random.random()}] * random.randrange(3),
        "ssn": random.choice((planted, {"of": planted}, None)),
        "about": "x" * random.randrange(1_000),
        random.choice(("extra", "ex.tra")): [someone],
    }
    # No client would make this number again as it is written.
    text = json.dumps(person, ensure_ascii=False, separators=(",", ":"))
    return text.replace('"@"', "1e400").encode(), key, headers


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """A source topic, and its share of the records."""

    partitions: int
    record: Callable[[Random, bytes], WrittenRecord]
    """The record of a number."""
    share: float = 1.0
    transactions: float = 0.0
    """Part of the bursts that is written in transactions."""
    aborted: float = 1 / 3
    """Part of the transactions."""
    backdated: float = 0.0
    """Part of the records: entered late, with the time at which they were made."""
    large: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)


SHAPES: Mapping[str, TopicShape] = {
    "orders": TopicShape(partitions=6, record=_order, share=0.5, backdated=0.05),
    "payments": TopicShape(partitions=3, record=_payment, share=0.25, transactions=1.0),
    "customers": TopicShape(partitions=3, record=_customer, share=0.15, configs={"cleanup.policy": "compact"}),
    "audit-log": TopicShape(
        partitions=2,
        record=_line,
        share=0.1,
        large=LARGE_RECORDS,
        configs={"message.timestamp.type": "LogAppendTime", "max.message.bytes": "5000000"},
    ),
}


def soak_shape(partitions: int, secret: bytes = b"") -> TopicShape:
    """A topic with some of it all; or with people, given what their secrets have in them."""
    record = partial(_person, secret) if secret else _anything
    return TopicShape(partitions=partitions, record=record, transactions=0.4, aborted=0.375)


class Workload:
    """What applications write to one cluster."""

    def __init__(
        self,
        bootstrap: str,
        *,
        records: int,
        seed: int,
        seconds: float,
        shapes: Mapping[str, TopicShape] = SHAPES,
        name: Callable[[str], str] = str,
        transaction_timeout_ms: int = 60_000,
    ) -> None:
        """Say what to write.

        Args:
            bootstrap: the cluster.
            records: to produce, aborted ones included.
            seed: of everything but the time.
            seconds: over which they are spread.
            shapes: of the topics, by name.
            name: what a topic is called on this cluster.
            transaction_timeout_ms: after which the cluster ends a transaction.
        """
        self.transactional_id = f"workload-{time.time_ns()}"
        """Of the producers of transactions, one after the other."""
        self.produced = 0
        """Records produced so far."""
        self._bootstrap = bootstrap
        self._shapes = shapes
        self._partitions = {topic: shape.partitions for topic, shape in shapes.items()}
        self._name = name
        self._records = records
        self._seconds = seconds
        self._random = Random(seed)  # noqa: S311 -- a workload, not a secret
        self._transaction_timeout_ms = transaction_timeout_ms
        self._plain: Producer | None = None
        self._transactional: Producer | None = None
        self._stopped = threading.Event()
        self._writing = threading.Lock()

    @property
    def progress(self) -> float:
        """Part of the records that has been produced, 0 to 1."""
        return self.produced / self._records

    def create_topics(self) -> None:
        """Create the topics that are not there."""
        shapes = self._shapes.items()
        topics = [NewTopic(self._name(topic), each.partitions, config=dict(each.configs)) for topic, each in shapes]
        create_topics(self._bootstrap, topics)

    def partitions(self, topic: str) -> int:
        """How many partitions of a topic are written to."""
        return self._partitions[topic]

    def spread(self, topic: str, partitions: int) -> None:
        """Write to so many partitions of a topic from now on; they exist."""
        with self._writing:
            self._partitions[topic] = partitions
            self._plain = self._transactional = None  # these clients see new partitions minutes later

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Nothing is written inside the block, and what is written behind it comes from other producers.

        Brokers may lose what they know of the old ones. The block gets whether enough is left to be written behind it.
        """
        with self._writing:
            yield self.progress < ENOUGH_LEFT
            self._plain = self._transactional = None

    def write_on(self, topic: str, count: int) -> None:
        """Write so many records in the block of `held`.

        Raises:
            TimeoutError: the cluster takes none.
        """
        producer = self._producer({"enable.idempotence": True})
        self._burst(producer, topic, count)
        self._flush(producer)

    def stop(self) -> None:
        """Let `produce` end early, in another thread."""
        self._stopped.set()

    def produce(self) -> None:
        """Produce everything; returns when all of it is acknowledged, or aborted.

        Raises:
            TimeoutError: when the cluster stops taking records.
        """
        weights = [shape.share for shape in self._shapes.values()]
        large = {topic: shape.large for topic, shape in self._shapes.items()}
        while self.produced < self._records and not self._stopped.is_set():
            with self._writing:
                began, before = time.monotonic(), self.produced
                topic = self._random.choices(list(self._shapes), weights)[0]
                if self._random.random() < self._shapes[topic].transactions:
                    self._transaction(topic)
                else:
                    self._plain = self._plain or self._producer({"enable.idempotence": True})
                    self._burst(self._plain, topic)
                    if large[topic] and self.progress > 1 - large[topic] / (LARGE_RECORDS + 1):
                        large[topic] -= 1
                        self._write(self._plain, topic, (self._random.randbytes(NEARLY_TOO_LARGE), b"large", []))
                    self._flush(self._plain)
            # Keep to the pace, so that faults meet a flow at work; what an outage took is not made up for.
            pace = (self.produced - before) * self._seconds / self._records
            self._stopped.wait(max(0.0, began + pace - time.monotonic()))

    def _transaction(self, topic: str) -> None:
        """One burst in a transaction."""
        abort = self._random.random() < self._shapes[topic].aborted
        try:
            producer = self._transactional
            if producer is None:
                options = {"transaction.timeout.ms": self._transaction_timeout_ms}
                producer = self._producer({"transactional.id": self.transactional_id, **options})
                producer.init_transactions(TIMEOUT_SECONDS)
            producer.begin_transaction()
            self._burst(producer, topic)
            producer.flush(TIMEOUT_SECONDS)  # aborted records must have been written, to leave their gap
            if abort:
                producer.abort_transaction(TIMEOUT_SECONDS)
            else:
                producer.commit_transaction(TIMEOUT_SECONDS)
            self._transactional = producer
        except KafkaException:
            # It stood still for too long, or its broker died: the cluster decides what becomes of it, and the audit
            # reads that. Another producer goes on, which ends what this one left open.
            self._transactional = None

    def _burst(self, producer: Producer, topic: str, count: int | None = None) -> None:
        for _ in range(count or self._random.randint(1, BURST)):
            self._write(producer, topic, self._shapes[topic].record(self._random, b"%d" % self.produced))
        producer.poll(0)

    def _write(self, producer: Producer, topic: str, record: WrittenRecord) -> None:
        value, key, headers = record
        late = self._random.random() < self._shapes[topic].backdated
        timestamp = EARLIEST + self._random.randrange(10**11) if late else 0  # the present, for the client
        # One draw whatever the count is: what is written next stays that of the seed.
        partition = int(self._random.random() * self._partitions[topic])

        producer.produce(self._name(topic), value, key, partition, timestamp=timestamp, headers=headers)
        self.produced += 1

    def _flush(self, producer: Producer) -> None:
        if producer.flush(TIMEOUT_SECONDS):
            raise TimeoutError(f"{self._bootstrap} took no records for {TIMEOUT_SECONDS:.0f} s")

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
