"""CPU of copying whole batches, per batch and per record: the engine alone, without a journal.

Batches of 16 KB, Java's default, and of 256 KB, lz4, with records of 100 B, 1 KB and 10 KB, in six partitions; a
transaction for each 8 MB. They are read, produced with a new header and proved: digest, and the last record of each
lane. CPU is that of this process; the brokers' is not in it.
"""

from __future__ import annotations

import time
from statistics import median

from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.records.batch_records import last_record
from mirrorless.records.record_batch import batch_digest
from tests.benchmarks.beside_mm2.records import Shape, fill, shape
from tests.benchmarks.ground import Ground, grounded
from tests.benchmarks.harness import Outcome

PARTITIONS = 6
TOPIC_BYTES = {16_000: 120_000_000, 256_000: 300_000_000}
"""By bytes of a batch; both before compression."""
TRANSACTION_BYTES = 8_000_000
SECONDS = 120.0


def measure(*, rounds: int = 3, part: float = 1.0) -> Outcome:
    """CPU of copying whole batches, the engine alone, without a journal. Args: part: of the topics' usual bytes."""
    cases = [
        shape(size, PARTITIONS, int(whole * part) // size, batch=batch)
        for batch, whole in TOPIC_BYTES.items()
        for size in (100, 1_000, 10_000)
    ]
    took: dict[Shape, list[tuple[float, ...]]] = {case: [] for case in cases}
    with grounded() as ground:
        for case in cases:
            ground.create({case.name: PARTITIONS})
            fill(ground.source.bootstrap, [case.name], case)
        for number in range(rounds):
            for case, rows in took.items():
                rows.append(_copied(ground, case, f"{case.name}-{number}"))
    print("record  batch    compressed   records/s   records per CPU-second   us of CPU per batch")
    for case, rows in took.items():
        compressed, by_wall, by_cpu, per_batch = map(median, zip(*rows, strict=True))
        print(
            f"{case.size:6,} B {case.batch // 1000:3} KB  {compressed:8,.0f} B  {by_wall:10,.0f}  {by_cpu:21,.0f}  "
            f"{per_batch:18.1f}"
        )
    return Outcome({})


def _copied(ground: Ground, case: Shape, copy: str) -> tuple[float, ...]:
    """One copy: bytes of a batch, records a second and a CPU-second, and microseconds of CPU a batch."""
    ground.create_remote({copy: PARTITIONS})
    settings = ground.settings()
    log = KafkaRawLog(settings.source, flow="bench")
    writer = RawWriter(settings.target, flow="bench", transactional_id=copy, timeout_ms=60_000, deadline=_deadline)
    log.follow({(case.name, partition): 0 for partition in range(PARTITIONS)})
    ended, batches, records, size = set[tuple[str, int]](), 0, 0, 0
    cpu, wall = time.process_time(), time.monotonic()
    while len(ended) < PARTITIONS:
        arrivals = log.arrivals(1.0, records=10**7, size=TRANSACTION_BYTES)
        ended |= arrivals.ended.keys()
        if not arrivals.records:
            continue
        writer.write({(copy, partition): some for (_, partition), some in arrivals.records.items()}, _deadline)
        for some in arrivals.records.values():
            batch_digest(some)
            last_record(some[-1])
        writer.commit(_deadline)
        batches += sum(map(len, arrivals.records.values()))
        records += sum(batch.records_count for some in arrivals.records.values() for batch in some)
        size += arrivals.bytes
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    log.close()
    writer.close()
    return size / batches, records / wall, records / cpu, cpu / batches * 1e6


def _deadline() -> float:
    """There is always time."""
    return SECONDS
