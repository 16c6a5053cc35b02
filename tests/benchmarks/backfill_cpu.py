"""Speed of a job's copy beside a bare loop: both on the same Spark, in alternating rounds.

The bare loop consumes and produces in transactions of 20,000 records, and keeps no map: no digest, no chain, no
position. Ours is the worker of the backfill job, with everything on. Wall time is of the whole Spark job once its
workers are warm; CPU is of the Python workers, the clients' threads included. Clusters, DynamoDB Local and Spark share
this machine's cores, so the rates are of all of them together. `make bench` prints the table.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import msgspec
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.target import producer_config
from mirrorless.jobs.copy_task import CHUNK_RECORDS, CopyResult, CopyTask, OffsetRange
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions
from spark.lane_tasks import TaskAttempt, copy_lane, run_lanes, spark_session

TOPIC = "history"
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


def bare_copy(task: bytes, _: TaskAttempt) -> bytes:
    """One lane, from its beginning to its end."""
    lane = msgspec.json.decode(task, type=CopyTask)
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
    return msgspec.json.encode(
        CopyResult(
            lane=f"{topic}-{partition}",
            partition=partition,
            state="done",
            records=records,
            written=records,
            seconds=time.perf_counter() - began,
            cpu_seconds=time.process_time() - cpu,
        )
    )


@dataclass(frozen=True, slots=True)
class Round:
    """One copy of the whole topic."""

    seconds: float
    cpu_seconds: float
    records: int

    @property
    def per_second(self) -> float:
        """Records, wall."""
        return self.records / self.seconds


class Bench:
    """A topic on the source, copied again and again into new topics."""

    def __init__(self, spark: SparkSession, settings: FlowSettings, partitions: int) -> None:
        self._spark, self._settings, self._partitions = spark, settings, partitions
        self._source = AdminClient({"bootstrap.servers": settings.source.bootstrap})
        self._target = AdminClient({"bootstrap.servers": settings.target.bootstrap})
        self._ends: list[int] = []

    def fill(self, records: int, size: int) -> None:
        """Write the history: keys, and values that do not compress."""
        self._source.create_topics([NewTopic(TOPIC, self._partitions, 1)])[TOPIC].result()
        producer = Producer({"bootstrap.servers": self._settings.source.bootstrap, "linger.ms": 50})
        pool = os.urandom(1 << 20)
        for number in range(records):
            at = number * 97 % (len(pool) - size)
            key = b"%08d" % number
            while True:
                try:
                    producer.produce(TOPIC, pool[at : at + size], key, number % self._partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(60):
            raise RuntimeError("the history was not written")
        self._ends = [len(range(partition, records, self._partitions)) for partition in range(self._partitions)]

    def round(self, name: str, work: Any) -> Round:
        """Copy all of it once, into a topic that is deleted afterwards."""
        topic = f"copy-{name}"
        self._target.create_topics([NewTopic(topic, self._partitions, 1)])[topic].result()
        tasks = [
            CopyTask(
                settings=self._settings,
                lane_topic=f"{TOPIC}#{name}",
                read_topic=TOPIC,
                write_topic=topic,
                partition=partition,
                ranges=(OffsetRange(0, end),),
                run_id=name,
            )
            for partition, end in enumerate(self._ends)
        ]
        began = time.perf_counter()
        found = run_lanes(self._spark, work, [msgspec.json.encode(task) for task in tasks])
        seconds = time.perf_counter() - began
        results = [msgspec.json.decode(each, type=CopyResult) for each in found]
        self._target.delete_topics([topic])[topic].result()
        if any(each.state != "done" for each in results) or sum(each.records for each in results) != sum(self._ends):
            raise RuntimeError(f"not everything was copied: {[each.error for each in results]}")
        return Round(seconds, sum(each.cpu_seconds for each in results), sum(self._ends))


def measure(records: int, size: int, partitions: int, rounds: int) -> None:
    """Print the table."""
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
            spark = spark_session("benchmark")
            try:
                _measure(Bench(spark, settings, partitions), records, size, rounds)
            finally:
                spark.stop()
        finally:
            for server in servers:
                server.stop()


def _measure(bench: Bench, records: int, size: int, rounds: int) -> None:
    bench.fill(records, size)
    works = {"bare": bare_copy, "ours": copy_lane}
    found: dict[str, list[Round]] = {"bare": [], "ours": []}
    print(f"{records:,} records of {size} B; load {os.getloadavg()[0]:.1f}")
    print(f"{'round':>6} {'what':>5} {'wall s':>7} {'records/s':>10} {'CPU s per million':>18}")
    for number in range(rounds + 1):
        for what, work in works.items():
            done = bench.round(f"{what}-{number}", work)
            warm = "" if number else " (warming up)"
            per_million = done.cpu_seconds * 1e6 / done.records
            print(
                f"{number:>6} {what:>5} {done.seconds:>7.2f} {done.per_second:>10,.0f} {per_million:>18.2f}{warm}",
                flush=True,
            )
            if number:
                found[what].append(done)
    pairs = list(zip(found["ours"], found["bare"], strict=True))
    rate = median(each.per_second for each in found["ours"])
    wall = median(ours.seconds / bare.seconds for ours, bare in pairs)
    cpu = median(ours.cpu_seconds / bare.cpu_seconds for ours, bare in pairs)
    print(f"ours: {rate:,.0f} records/s; {wall:.2f} of the bare loop's wall time and {cpu:.2f} of its CPU (medians)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    # Workers import functions by their module's name, and this one is called __main__ here.
    from tests.benchmarks import backfill_cpu  # noqa: PLW0406 -- on purpose

    backfill_cpu.measure(arguments.records, arguments.size, arguments.partitions, arguments.rounds)
