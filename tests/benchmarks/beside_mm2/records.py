"""The records that every side copies, from a fixed seed.

A value begins with its number in its partition (8 hexadecimal digits), so that whoever reads the last record of a
partition says that it is the last. Orders as JSON follow, cut where the value ends: lz4 leaves a third. Or noise:
random bytes, as encryption or another codec leaves them: lz4 finds nothing in them, and gives up early.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from random import Random

from confluent_kafka import KafkaError, Message, Producer

TEMPLATE_BYTES = 1_000_000
"""Of different values, before they come again: far more than lz4 looks back (64 KB), so that it finds none twice."""
TEMPLATES = 256
"""Different values at least."""
KEY = b"key-%08d"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Records of one size on so many partitions."""

    size: int
    """Bytes of a value; the key has 12 more."""
    partitions: int
    count: int
    """Records of one measurement, a multiple of the partitions."""
    noise: bool = False
    """Whether the values are random bytes."""
    topics: int = 1
    """That have so many partitions each."""
    batch: int = 0
    """Bytes of a batch of the source, before compression; 0: as its producer gathers them."""

    @property
    def name(self) -> str:
        """`100B-x6`, `1000B-x6-noise`, `1000B-100x6`, `1000B-x6-16KB`."""
        parts = [f"{self.size}B", f"{self.topics if self.topics > 1 else ''}x{self.partitions}"]
        parts += ["noise"] * self.noise + [f"{self.batch // 1000}KB"] * bool(self.batch)
        return "-".join(parts)

    @property
    def per_partition(self) -> int:
        """Records of each partition."""
        return self.count // self.partitions // self.topics

    @property
    def megabytes(self) -> float:
        """Of keys and values, in 10^6 bytes."""
        return self.count * (self.size + len(KEY % 0)) / 1e6


def shape(size: int, partitions: int, about: int, *, noise: bool = False, topics: int = 1, batch: int = 0) -> Shape:
    """A shape of about so many records, as many on each partition."""
    lanes = partitions * topics
    count = max(1, about // lanes) * lanes
    return Shape(size=size, partitions=partitions, count=count, noise=noise, topics=topics, batch=batch)


def values(records: Shape, *, seed: int) -> list[bytes]:
    """What follows the number in the values, in turns."""
    random, size = Random(seed), records.size - 8  # noqa: S311 -- a workload, not a secret
    count = max(TEMPLATES, TEMPLATE_BYTES // records.size)
    if records.noise:
        return [random.randbytes(size) for _ in range(count)]
    return [_cut(_orders(random), size) for _ in range(count)]


def _cut(documents: Iterator[bytes], size: int) -> bytes:
    """As many documents as it takes; the shortest has some 100 bytes."""
    return b"".join(islice(documents, size // 100 + 1))[:size]


def _orders(random: Random) -> Iterator[bytes]:
    while True:
        lines = [
            {
                "sku": f"SKU-{random.randrange(10**6):06d}",
                "quantity": random.randrange(1, 9),
                "price": random.randrange(10**4) / 100,
            }
            for _ in range(random.randrange(1, 5))
        ]
        order = {
            "order": random.randrange(10**9),
            "status": random.choice(("new", "paid", "shipped", "returned")),
            "at": f"2026-11-{random.randrange(1, 31):02d}T{random.randrange(24):02d}:{random.randrange(60):02d}Z",
            "customer": random.randbytes(8).hex(),
            "lines": lines,
        }
        yield json.dumps(order).encode()


def fill(bootstrap: str, topics: Sequence[str], records: Shape, *, seed: int = 1) -> None:
    """Write the records to the topics, lz4 as many producers do; returns when all are acknowledged.

    Raises:
        RuntimeError: the cluster refused one, or took them for too long.
    """
    tails = values(records, seed=seed)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": 8_000_000,
            "log_level": 0,
        }
    )
    refused: list[str] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(str(error))

    produce, poll = producer.produce, producer.poll
    # The last of each partition is looked at: a report per record would double the cost of filling.
    last = records.per_partition - 1
    for number in range(records.per_partition):
        head, key = b"%08x" % number, KEY % number
        for topic, partition in product(topics, range(records.partitions)):
            value = head + tails[(number + partition) % len(tails)]
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery if number == last else None)
                    break
                except BufferError:
                    poll(0.05)
        if number % 1000 == 0:
            poll(0)
    if producer.flush(TIMEOUT_S) or refused:
        raise RuntimeError(f"{topics[0]} was not filled within {TIMEOUT_S:.0f} s {refused[:1]}")
