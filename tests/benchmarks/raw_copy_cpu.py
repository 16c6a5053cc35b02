"""CPU of copying whole batches, per batch and per record: the engine alone, without a journal.

Batches of 16 KB, Java's default, and of 256 KB, lz4, with records of 100 B, 1 KB and 10 KB, in six partitions; a
transaction for each 8 MB. They are read, produced with a new header and proved: digest, and the last record of each
lane. CPU is that of this process; the brokers' is not in it. `make bench-parts` prints the table.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median

from confluent_kafka.admin import AdminClient, NewTopic

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.batch_records import last_record, packed
from mirrorless.ports.kafka import TopicPartition
from mirrorless.record import Record
from mirrorless.record_batch import RecordBatch, batch_digest
from mirrorless.settings import ClusterSettings

PARTITIONS = 6
CASES = [(size, batch) for batch in (16_000, 256_000) for size in (100, 1_000, 10_000)]
"""Bytes of a value, and of a batch before compression."""
TRANSACTION_BYTES = 8_000_000
TOPIC_BYTES = {16_000: 60_000_000, 256_000: 150_000_000}
SECONDS = 120.0


def deadline() -> float:
    """There is always time."""
    return SECONDS


class Round:
    """One copy of a topic."""

    def __init__(self, source: ClusterSettings, target: ClusterSettings, topic: str, copy: str) -> None:
        """Open both ends. Args: topic: on the source. copy: on the target."""
        self._places = [(topic, partition) for partition in range(PARTITIONS)]
        self._copy = copy
        self._log = KafkaRawLog(source, flow="bench")
        self._writer = RawWriter(target, flow="bench", transactional_id=copy, timeout_ms=60_000, deadline=deadline)
        self.batches = self.records = self.bytes = 0
        self.cpu = self.wall = 0.0

    def run(self) -> None:
        """Copy all of it."""
        self._log.follow(dict.fromkeys(self._places, 0))
        ended: set[TopicPartition] = set()
        cpu, wall = time.process_time(), time.monotonic()
        while len(ended) < PARTITIONS:
            arrivals = self._log.arrivals(1.0, records=10**7, size=TRANSACTION_BYTES)
            ended |= arrivals.ended.keys()
            if not arrivals.records:
                continue
            self._writer.write({(self._copy, p): some for (_, p), some in arrivals.records.items()}, deadline)
            for some in arrivals.records.values():
                batch_digest(some)
                last_record(some[-1])
            self._writer.commit(deadline)
            self.batches += sum(map(len, arrivals.records.values()))
            self.records += sum(batch.records_count for some in arrivals.records.values() for batch in some)
            self.bytes += arrivals.bytes
        self.cpu, self.wall = time.process_time() - cpu, time.monotonic() - wall
        self._log.close()
        self._writer.close()


def fill(cluster: ClusterSettings, topic: str, size: int, batch_bytes: int) -> None:
    """Batches of that kind, as far as the topic's bytes go."""
    made = sample(size, batch_bytes)
    count = TOPIC_BYTES[batch_bytes] // PARTITIONS // made[0].size
    writer = RawWriter(cluster, flow="bench", transactional_id=f"fill-{topic}", timeout_ms=60_000, deadline=deadline)
    while count:
        part = min(count, 400)
        some = [made[i % len(made)] for i in range(part)]
        writer.write({(topic, partition): some for partition in range(PARTITIONS)}, deadline)
        writer.commit(deadline)
        count -= part
    writer.close()


def sample(size: int, batch_bytes: int) -> list[RecordBatch]:
    """A few batches whose content compresses to about a half, as text does."""
    chance = Random(size)  # noqa: S311 -- content, not a secret
    words = [b"%08x" % chance.getrandbits(32) for _ in range(256)]
    found: list[RecordBatch] = []
    for _ in range(8):
        values = (b"".join(chance.choices(words, k=size // 8)) for _ in range(max(1, batch_bytes // size)))
        some = [Record(i, 1_763_700_000_000 + i, [], None, value) for i, value in enumerate(values)]
        found += packed(some, "lz4", max_bytes=10**6)
    return found


def create(cluster: KafkaCluster, topic: str) -> None:
    """A topic of the benchmark."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


def measure(rounds: int) -> None:
    """Print the table: the median of the rounds, which take turns."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = (
            KafkaCluster(alias=alias, folder=Path(folder, alias), heap_mb=1024) for alias in ("source", "target")
        )
        try:
            source.begin_start()
            target.begin_start()
            source.wait_ready()
            target.wait_ready()
            _measure(source, target, rounds)
        finally:
            source.stop()
            target.stop()


def _measure(source: KafkaCluster, target: KafkaCluster, rounds: int) -> None:
    here, there = (ClusterSettings(alias=each.alias, bootstrap=each.bootstrap) for each in (source, target))
    for size, batch in CASES:
        create(source, f"b-{size}-{batch}")
        fill(here, f"b-{size}-{batch}", size, batch)
    done: dict[tuple[int, int], list[Round]] = {case: [] for case in CASES}
    for number in range(rounds):
        for size, batch in CASES:
            copy = f"c-{size}-{batch}-{number}"
            create(target, copy)
            each = Round(here, there, f"b-{size}-{batch}", copy)
            each.run()
            done[size, batch].append(each)
    print("record  batch    compressed   records/s   records per CPU-second   us of CPU per batch")
    for (size, batch), some in done.items():
        by_cpu = median(each.records / each.cpu for each in some)
        by_wall = median(each.records / each.wall for each in some)
        per_batch = median(each.cpu / each.batches for each in some) * 1e6
        compressed = some[0].bytes // some[0].batches
        print(
            f"{size:6,} B {batch // 1000:3} KB  {compressed:8,} B  {by_wall:10,.0f}  {by_cpu:21,.0f}  {per_batch:18.1f}"
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="CPU of copying whole batches")
    parser.add_argument("--rounds", type=int, default=3, help="copies of each kind of topic, 3 by default")
    measure(parser.parse_args().rounds)


if __name__ == "__main__":
    main()
