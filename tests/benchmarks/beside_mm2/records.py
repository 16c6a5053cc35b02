"""Which records are copied? The same for every side, from a fixed seed: half of each value's bits are compressible.

A value begins with its number in its partition (8 hexadecimal digits), so that whoever reads the last record of a
partition knows that it is the last. The digits of random bytes follow: a codec halves them, as it does JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from confluent_kafka import KafkaError, Message, Producer

TEMPLATES = 256
KEY = b"key-%08d"
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Records of one size on so many partitions."""

    size: int
    """Bytes of a value; the key has 12 more."""
    partitions: int
    count: int
    """Records of one measurement, a multiple of the partitions."""

    @property
    def name(self) -> str:
        """`100B-x6`."""
        return f"{self.size}B-x{self.partitions}"

    @property
    def per_partition(self) -> int:
        """Records of each partition."""
        return self.count // self.partitions

    @property
    def megabytes(self) -> float:
        """Of keys and values, in 10^6 bytes."""
        return self.count * (self.size + len(KEY % 0)) / 1e6


def shape(size: int, partitions: int, about: int) -> Shape:
    """A shape of about so many records, as many on each partition."""
    return Shape(size=size, partitions=partitions, count=max(1, about // partitions) * partitions)


def fill(bootstrap: str, topic: str, records: Shape, *, seed: int = 1) -> None:
    """Write the records, lz4 as many producers do; returns when all are acknowledged.

    Raises:
        RuntimeError: the cluster refused one, or took them for too long.
    """
    random = Random(seed)  # noqa: S311 -- a workload, not a secret
    tails = [random.randbytes(records.size // 2).hex().encode()[: records.size - 8] for _ in range(TEMPLATES)]
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
        for partition in range(records.partitions):
            value = head + tails[(number + partition) % TEMPLATES]
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery if number == last else None)
                    break
                except BufferError:
                    poll(0.05)
        if number % 1000 == 0:
            poll(0)
    if producer.flush(PATIENCE_S) or refused:
        raise RuntimeError(f"{topic} was not filled within {PATIENCE_S:.0f} s {refused[:1]}")
