"""A reproducible stream of records of every shape, in bursts, for soak runs.

Part of it is written in transactions, and some of those are aborted: their records and markers leave gaps in the
offsets. The source broker may die on the way: the stream waits for it, and what was not acknowledged is not counted on.
"""

from __future__ import annotations

import threading
from random import Random

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from lab.cloud import create_topics
from lab.faults.schedule import Schedule

BURST = 250
"""Records between two looks at the clock."""
BURSTS_PER_SECOND = 8
TIMEOUT_SECONDS = 60.0


class RecordStream:
    """The records of one schedule."""

    def __init__(self, bootstrap: str, topic: str, schedule: Schedule) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._schedule = schedule
        self._random = Random(schedule.seed)  # noqa: S311 -- a workload, not a secret
        self._produced = 0
        self._pause = threading.Event()

    def create_topic(self) -> None:
        """Create the source topic."""
        create_topics(self._bootstrap, [NewTopic(self._topic, self._schedule.partitions, 1)])

    def progress(self) -> float:
        """Part of the records that has been produced."""
        return self._produced / self._schedule.records

    def produce(self) -> None:
        """Produce everything; returns when every record is acknowledged or its transaction is over."""
        plain = self._producer({"enable.idempotence": True})
        transactional: Producer | None = None
        while self._produced < self._schedule.records:
            kind = self._random.random()
            if kind < 0.6:  # noqa: PLR2004 -- most bursts are plain
                self._burst(plain)
                if plain.flush(TIMEOUT_SECONDS):
                    raise TimeoutError(f"{self._topic}: the source took no records for {TIMEOUT_SECONDS:.0f} s")
            else:
                transactional = self._transaction(transactional, commit=kind < 0.85)  # noqa: PLR2004 -- the rest aborts
            self._pause.wait(self._random.random() * 2 / BURSTS_PER_SECOND)

    def _transaction(self, producer: Producer | None, *, commit: bool) -> Producer | None:
        """One burst in a transaction; the producer to go on with, or None where it broke with its broker."""
        try:
            if producer is None:
                producer = self._producer({"transactional.id": self._topic, "transaction.timeout.ms": 5000})
                producer.init_transactions(TIMEOUT_SECONDS)
            producer.begin_transaction()
            self._burst(producer)
            if commit:
                producer.commit_transaction(TIMEOUT_SECONDS)
            else:
                producer.flush(TIMEOUT_SECONDS)  # aborted records must have been written, to leave their gap
                producer.abort_transaction(TIMEOUT_SECONDS)
        except KafkaException:
            # The broker died in the middle: it decides the transaction's fate, and the audit reads what became of it.
            return None
        return producer

    def _burst(self, producer: Producer) -> None:
        for _ in range(self._random.randint(1, BURST)):
            value, key, headers = self._record()
            partition = self._random.randrange(self._schedule.partitions)
            producer.produce(self._topic, value, key, partition, headers=headers)
            self._produced += 1
        producer.poll(0)

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
