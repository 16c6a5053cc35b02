"""Speed of a job's copy beside a bare loop: all on the same Spark, in alternating rounds.

The bare loop consumes and produces in transactions of 20,000 records, and keeps no map: no digest, no chain, no
position. The others are the worker of the backfill job, with everything on: by records, and by whole batches. Wall time
is of the whole Spark job once its workers are warm; CPU is of the Python workers, the clients' threads included, and so
is the most resident memory of a worker. Clusters, DynamoDB Local and Spark share this machine's cores, so the rates are
of all of them together. `make bench-parts` prints the table.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from uuid import uuid4

import msgspec
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkContext

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.target import producer_config
from mirrorless.jobs import engine_choice
from mirrorless.jobs.copy_task import CHUNK_RECORDS, CopyResult, CopyTask, OffsetRange
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions
from spark.jobs.context import spark_context
from spark.jobs.lane_groups import copy_all, copy_together
from spark.jobs.lane_tasks import TaskAttempt, Work

TOPIC = "history"
WHAT = ("bare", "records", "batches")
ROOT = Path(__file__).parents[2]


@cache
def bare_clients(source: str, settings: bytes) -> tuple[Consumer, Producer]:
    """The process's warm ones, with the settings that ours have."""
    producer = Producer(
        producer_config(msgspec.json.decode(settings, type=FlowSettings)) | {"transactional.id": uuid4().hex}
    )
    producer.init_transactions(30)
    consumer = Consumer(
        {
            "bootstrap.servers": source,
            "group.id": "bare",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "fetch.queue.backoff.ms": 5,
        }
    )
    return consumer, producer


def bare_copies(task: bytes, _: TaskAttempt) -> bytes:
    """The lanes of a task, one after the other."""
    return msgspec.json.encode([bare_copy(lane) for lane in msgspec.json.decode(task, type=list[CopyTask])])


def bare_copy(lane: CopyTask) -> CopyResult:
    """One lane, from its beginning to its end."""
    began, cpu = time.perf_counter(), time.process_time()
    consumer, producer = bare_clients(lane.settings.source.bootstrap, msgspec.json.encode(lane.settings))
    produce, topic, partition = producer.produce, lane.write_topic, lane.partition
    consumer.assign([TopicPartition(lane.read_topic, partition, 0)])
    records, left = 0, lane.ranges[0].next
    while left:
        producer.begin_transaction()
        taken = 0
        while taken < min(CHUNK_RECORDS, left):
            for message in consumer.consume(min(2_000, left - taken), timeout=0.05):
                error = message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise RuntimeError(error.str())
                    continue
                taken += 1
                produce(
                    topic,
                    message.value(),
                    message.key(),
                    partition,
                    None,
                    None,
                    message.timestamp()[1],
                    message.headers(),
                )
        producer.flush(30)
        producer.commit_transaction(30)
        records, left = records + taken, left - taken
    return CopyResult(
        lane=f"{topic}-{partition}",
        partition=partition,
        state="done",
        records=records,
        written=records,
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu,
    )


def measured(work: Work) -> Work:
    """The work, whose results have the most resident memory of their worker, in MB, in the place of their races."""

    def run(task: bytes, attempt: TaskAttempt) -> bytes:
        Path("/proc/self/clear_refs").write_text("5")
        results = msgspec.json.decode(work(task, attempt), type=list[CopyResult])
        status = Path("/proc/self/status").read_text()
        (peak,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return msgspec.json.encode([msgspec.structs.replace(each, races=peak // 1024) for each in results])

    return run


def copy_by_batches(task: bytes, attempt: TaskAttempt) -> bytes:
    """`copy_together`, which leaves no lane to the Kafka client."""
    engine_choice.LEAST_SAVED_US = float("inf")  # type: ignore[misc]  # in this worker alone
    return copy_together(task, attempt)


@dataclass(frozen=True, slots=True)
class Round:
    """One copy of the whole topic."""

    seconds: float
    cpu_seconds: float
    records: int
    peak_mb: float
    """Of a worker."""

    @property
    def per_second(self) -> float:
        """Records, wall."""
        return self.records / self.seconds

    @property
    def per_cpu_second(self) -> float:
        """Records."""
        return self.records / self.cpu_seconds


class Bench:
    """A topic on the source, copied again and again into new topics."""

    def __init__(self, spark: SparkContext, settings: FlowSettings, partitions: int) -> None:
        self._spark, self._settings, self._partitions = spark, settings, partitions
        self._source = AdminClient({"bootstrap.servers": settings.source.bootstrap})
        self._target = AdminClient({"bootstrap.servers": settings.target.bootstrap})
        self._ends: list[int] = []
        self._topic = TOPIC

    def fill(self, records: int, size: int, batch_kb: int) -> None:
        """Write the history: keys, and values that do not compress, in batches of so many KB at most."""
        self._topic = f"{TOPIC}-{batch_kb}"
        self._source.create_topics([NewTopic(self._topic, self._partitions, 1)])[self._topic].result()
        producer = Producer(
            {
                "bootstrap.servers": self._settings.source.bootstrap,
                "linger.ms": 1_000,
                "batch.size": batch_kb * 1024,
                "compression.type": "lz4",
            }
        )
        pool = os.urandom(1 << 20)
        for number in range(records):
            at = number * 97 % (len(pool) - size)
            key = b"%08d" % number
            while True:
                try:
                    producer.produce(self._topic, pool[at : at + size], key, number % self._partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(60):
            raise RuntimeError("the history was not written")
        self._ends = [len(range(partition, records, self._partitions)) for partition in range(self._partitions)]

    def round(self, name: str, work: Work, settings: FlowSettings) -> Round:
        """Copy all of it once, into a topic that is deleted afterwards."""
        topic = f"copy-{name}"
        self._target.create_topics([NewTopic(topic, self._partitions, 1)])[topic].result()
        tasks = [
            CopyTask(
                settings=settings,
                lane_topic=f"{self._topic}#{name}",
                read_topic=self._topic,
                write_topic=topic,
                partition=partition,
                ranges=(OffsetRange(0, end),),
                run_id=name,
            )
            for partition, end in enumerate(self._ends)
        ]
        began = time.perf_counter()
        results = copy_all(self._spark, tasks, work=measured(work))
        seconds = time.perf_counter() - began
        self._target.delete_topics([topic])[topic].result()
        if any(each.state != "done" for each in results) or sum(each.records for each in results) != sum(self._ends):
            raise RuntimeError(f"not everything was copied: {[each.error for each in results]}")
        peak = max(each.races for each in results)
        return Round(seconds, sum(each.cpu_seconds for each in results), sum(self._ends), peak)


def measure(
    records: int, size: int, *, batches_kb: Sequence[int], partitions: int, rounds: int, only: Sequence[str]
) -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        source = KafkaCluster(alias="source", folder=Path(folder, "source"))
        target = KafkaCluster(alias="target", folder=Path(folder, "target"))
        dynamodb = DynamoDbLocal(folder=Path(folder, "dynamodb"))
        servers = (source, target, dynamodb)
        try:
            for server in servers:
                server.begin_start()
            for server in servers:
                server.wait_ready()
            settings = FlowSettings(
                flow="source->target",
                source=ClusterSettings(alias="source", bootstrap=source.bootstrap),
                target=ClusterSettings(alias="target", bootstrap=target.bootstrap, region="us-east-1"),
                replication_factor=1,
            )
            for table in definitions(settings.tables):
                dynamodb.client().create_table(**table.create_request())
            os.environ |= {
                SPARK_MASTER_VARIABLE: "local[2,4]",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
                "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
                "AWS_ACCESS_KEY_ID": "lab",
                "AWS_SECRET_ACCESS_KEY": "lab",
            }
            spark = spark_context("benchmark")
            try:
                for batch_kb in batches_kb:
                    _measure(Bench(spark, settings, partitions), settings, records, size, batch_kb, rounds, only)
            finally:
                spark.stop()
        finally:
            for server in servers:
                server.stop()


def _measure(  # noqa: PLR0917 -- the arguments of the program
    bench: Bench, settings: FlowSettings, records: int, size: int, batch_kb: int, rounds: int, only: Sequence[str]
) -> None:
    bench.fill(records, size, batch_kb)
    works: dict[str, tuple[Work, FlowSettings]] = {
        "bare": (bare_copies, settings),
        "records": (copy_together, msgspec.structs.replace(settings, copy="records")),
        "batches": (copy_by_batches, settings),
    }
    works = {what: work for what, work in works.items() if what in only}
    found: dict[str, list[Round]] = {what: [] for what in works}
    print(f"{records:,} records of {size} B in batches of {batch_kb} KB (lz4); load {os.getloadavg()[0]:.1f}")
    print(f"{'round':>6} {'what':>8} {'wall s':>7} {'records/s':>10} {'records/CPU s':>14} {'peak MB':>8}")
    for number in range(rounds + 1):
        for what, (work, of) in works.items():
            done = bench.round(f"{what}-{number}", work, of)
            warm = "" if number else " (warming up)"
            print(
                f"{number:>6} {what:>8} {done.seconds:>7.2f} {done.per_second:>10,.0f} {done.per_cpu_second:>14,.0f} "
                f"{done.peak_mb:>8.0f}{warm}",
                flush=True,
            )
            if number:
                found[what].append(done)
    for what, done_all in found.items():
        pairs = list(zip(done_all, found.get("records", done_all), strict=True))
        cpu = median(each.per_cpu_second for each in done_all)
        wall = median(each.per_second for each in done_all)
        peak = median(each.peak_mb for each in done_all)
        ratio = median(each.per_cpu_second / other.per_cpu_second for each, other in pairs)
        print(
            f"{batch_kb} KB, {what}: {cpu:,.0f} records per CPU-second, {ratio:.2f} times those by records; "
            f"{wall:,.0f} records/s; {peak:.0f} MB (medians)",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a value")
    parser.add_argument("--batch-kb", type=int, nargs="+", default=[16, 256], help="of the source's batches")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--only", nargs="+", default=WHAT, choices=WHAT, help="alone, for the memory of one of them")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    # Workers import functions by their module's name, and this one is called __main__ here.
    from tests.benchmarks import backfill_cpu  # noqa: PLW0406 -- on purpose

    backfill_cpu.measure(
        arguments.records,
        arguments.size,
        batches_kb=arguments.batch_kb,
        partitions=arguments.partitions,
        rounds=arguments.rounds,
        only=arguments.only,
    )
