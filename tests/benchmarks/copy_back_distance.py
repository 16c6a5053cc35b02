"""Copying back over a distance: records per second of one lane and of twelve, to a source that is far away.

    python -m tests.benchmarks.copy_back_distance [--round-trip-ms 80] [--records 50000] [--batch-kb 16]

The job runs beside the target, as it does, and writes to the source through the lab's delaying proxy. Twelve lanes are
copied in two slots of Spark, as on two cores. Records have 1 KB, in batches as producers make them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.jobs.copy_task import CopyTask, OffsetRange
from mirrorless.lane import Lane
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.reconcile.copy_tasks import ReconciledLane, back_tasks
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions
from spark.jobs.context import spark_context
from spark.jobs.lane_groups import copy_all

ROOT = Path(__file__).parents[2]
TOPIC, LANES = "orders", 12


def fill(bootstrap: str, topic: str, records: int, batch_bytes: int) -> None:
    """Write the records of each lane."""
    config = {"bootstrap.servers": bootstrap, "linger.ms": 100, "batch.size": batch_bytes, "log_level": 0}
    producer = Producer(config | {"queue.buffering.max.messages": 1_000_000})
    pool = Random(1).randbytes(1 << 16)  # noqa: S311 -- the same records each time
    for partition in range(LANES + 1):
        for first in range(0, records, 5_000):
            some = [{"key": b"%d" % n, "value": pool[n % 60_000 :][:1_000]} for n in range(first, first + 5_000)]
            producer.produce_batch(topic, some, partition)
            while len(producer) > 100_000:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("the records were not written")


def tasks_of(settings: FlowSettings, partitions: range, records: int) -> list[CopyTask]:
    """The tasks that copy whole lanes back."""
    found = []
    for partition in partitions:
        forward = Lane(settings.name, TOPIC, partition)
        lane = ReconciledLane(forward=forward, remote_topic=settings.remote_topic(TOPIC), generation=0)
        found += back_tasks(settings, lane, (), OffsetRange(0, records), run_id="reconcile-1", files="")
    return found


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--round-trip-ms", type=float, default=80.0)
    parser.add_argument("--records", type=int, default=50_000, help="of each lane")
    parser.add_argument("--batch-kb", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="copy-back-") as name:
        folder = Path(name)
        source = KafkaCluster(alias="us-east", folder=folder / "us-east", linked=True)
        target = KafkaCluster(alias="eu-west", folder=folder / "eu-west")
        dynamodb = DynamoDbLocal(folder=folder / "dynamodb", in_memory=True)
        servers = (source, target, dynamodb)
        try:
            for server in servers:
                server.begin_start()
            for server in servers:
                server.wait_ready()
            os.environ |= {
                SPARK_MASTER_VARIABLE: "local[2,4]",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
                "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
                "AWS_ACCESS_KEY_ID": "lab",
                "AWS_SECRET_ACCESS_KEY": "lab",
            }
            settings = FlowSettings(
                flow="us-east->eu-west",
                source=ClusterSettings(alias="us-east", bootstrap=source.bootstrap),
                target=ClusterSettings(alias="eu-west", bootstrap=target.bootstrap, region="us-east-1"),
                replication_factor=1,
            )
            for definition in definitions(settings.tables):
                dynamodb.client().create_table(**definition.create_request())
            for address, topic in ((source.direct, TOPIC), (target.bootstrap, settings.remote_topic(TOPIC))):
                admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
                admin.create_topics([NewTopic(topic, LANES + 1, 1)])[topic].result(20)
            fill(target.bootstrap, settings.remote_topic(TOPIC), given.records, given.batch_kb * 1024)
            spark = spark_context("copy back")
            spark.setLogLevel("ERROR")
            source.link.round_trip_ms = given.round_trip_ms
            for partitions in (range(1), range(1, LANES + 1)):
                began = time.monotonic()
                tasks = tasks_of(settings, partitions, given.records)
                results = copy_all(spark, tasks)
                seconds = time.monotonic() - began
                copied, passed = sum(each.records for each in results), sum(each.passed_bytes for each in results)
                print(
                    f"{len(partitions):>2} lanes: {copied:,} records in {seconds:.1f} s, {copied / seconds:,.0f} "
                    f"records/s, {passed / max(1, sum(each.bytes for each in results)):.0%} passed, "
                    f"{sum(each.runs for each in results)} transactions",
                    flush=True,
                )
            spark.stop()
        finally:
            for server in servers:
                server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
