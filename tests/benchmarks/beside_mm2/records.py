"""The records that every side copies, from a fixed seed.

A value begins with its number in its partition (8 hexadecimal digits), so that whoever reads the last record of a
partition says that it is the last. Orders as JSON follow, cut where the value ends: lz4 leaves a third. Or noise:
random bytes, as encryption or another codec leaves them: lz4 finds nothing in them, and gives up early.

Where a shape names the size of a batch, each batch is packed once, and written again and again: only the last one of a
partition has numbers. So a topic is filled at the speed of the broker, and the batches are as large as is asked for,
whatever a client would have gathered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from random import Random
from uuid import uuid4

from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.flow.settings import ClusterSettings
from mirrorless.records.batch_records import packed
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch
from tests.benchmarks.beside_mm2.report import Figures
from tests.benchmarks.beside_mm2.sides import Cpu
from tests.benchmarks.ground import Written, produce

TEMPLATE_BYTES = 1_000_000
"""Of different values, before they come again: far more than lz4 looks back (64 KB), so that it finds none twice."""
TEMPLATES = 256
"""Different values at least."""
KEY = b"key-%08d"
TIMEOUT_S = 60.0
DIFFERENT_BYTES = 4_000_000
"""Of whole batches, before they come again."""
TRANSACTION_BYTES = 32_000_000
FRAMING = 12
"""Bytes of a record beside key and value, about."""
NO_NUMBER = b"f" * 8


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
    def lanes(self) -> int:
        """Partitions of all topics."""
        return self.partitions * self.topics

    @property
    def per_partition(self) -> int:
        """Records of each partition."""
        return self.count // self.lanes

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
    random, size = Random(seed), records.size - 8
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


def figures(records: Shape, seconds: float, spent: Cpu) -> Figures:
    """What the report shows of one copy."""
    return {
        "records": records.count,
        "megabytes": records.megabytes,
        "seconds": seconds,
        "cpu_s": spent.replicator,
        "poller_cpu_s": spent.poller,
        "records_per_s": records.count / seconds,
        "megabytes_per_s": records.megabytes / seconds,
        "records_per_cpu_s": records.count / max(spent.replicator, 0.01),
        "cpu_s_per_million": spent.replicator / records.count * 1e6,
        "cpu_s_per_million_with_poller": (spent.replicator + spent.poller) / records.count * 1e6,
    }


def fill(bootstrap: str, topics: Sequence[str], records: Shape, *, seed: int = 1) -> None:
    """Write the records to the topics; returns when all are acknowledged.

    Raises:
        RuntimeError: the cluster refused one, or took them for too long.
        MirrorlessError: the cluster took whole batches for too long.
    """
    if not records.batch:
        tails, lanes = values(records, seed=seed), range(records.partitions)
        for topic in topics:  # as batches that a client gathers, lz4 as many producers do
            gathered: Iterator[Written] = (
                (partition, KEY % number, b"%08x" % number + tails[(number + partition) % len(tails)], [])
                for number in range(records.per_partition)
                for partition in lanes
            )
            produce(bootstrap, topic, gathered, compression_type="lz4", message_max_bytes=8_000_000)
        return
    some, last = _batches(records, seed=seed)
    writer = RawWriter(
        ClusterSettings(alias="source", bootstrap=bootstrap),
        flow="fill",
        transactional_id=f"fill-{uuid4()}",
        timeout_ms=int(TIMEOUT_S * 1000),
        deadline=lambda: TIMEOUT_S,
    )
    places = list(product(topics, range(records.partitions)))
    try:
        portion = max(1, TRANSACTION_BYTES // len(places) // last[0].size)
        for at in range(0, len(some) + 1, portion):
            part = some[at : at + portion] + (last if at + portion > len(some) else [])
            written = writer.write(dict.fromkeys(places, part), lambda: TIMEOUT_S)
            if refused := [each.refusal for each in written.values() if each.refusal]:
                raise RuntimeError(f"{topics[0]} was not filled: {refused[0]}")
            writer.commit(lambda: TIMEOUT_S)
    finally:
        writer.close()


def _batches(records: Shape, *, seed: int) -> tuple[list[RecordBatch], list[RecordBatch]]:
    """All batches of a partition but the last, most of them the same objects, and the last one."""
    each = max(1, records.batch // (records.size + len(KEY % 0) + FRAMING))
    tails = values(replace(records, batch=0), seed=seed)
    now = time.time_ns() // 1_000_000

    def batch(first: int, count: int, *, numbered: bool = False) -> list[RecordBatch]:
        some = [
            Record(number, now, [], KEY % number, (b"%08x" % number if numbered else NO_NUMBER) + tail)
            for number in range(first, first + count)
            for tail in (tails[number % len(tails)],)
        ]
        (packed_batch,) = packed(some, "lz4", max_bytes=2**31)
        return [packed_batch]

    whole, left = divmod(records.per_partition, each)
    if not left:
        whole, left = whole - 1, each
    different = max(1, min(whole, DIFFERENT_BYTES // (each * records.size)))
    made = [batch(number * each, each)[0] for number in range(different)] if whole else []
    return [made[number % different] for number in range(whole)], batch(whole * each, left, numbered=True)
