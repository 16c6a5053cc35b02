"""Verification of many records: nothing found in a good copy, exactly one planted fault, and what a second core gives.

    records on the source  ->  copied by the jobs' engine  ->  verified by 1, 2, 2, 1 slots, thrice: nothing is found
    one more batch, one byte of it changed on its way  ->  verified again: exactly that one is found

Real clusters, DynamoDB Local and Spark share this machine's cores. Exits 1 when something else is found. Run it with
`python -m tests.benchmarks.verify_five_million --records 20000000`; `--partitions 1` is one lane alone, `--partitions
240` many small ones; `--against-source` reads and compares both sides; `--figures` writes the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkContext

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.clock import now_ms
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.lane_copy import deadline_in
from mirrorless.jobs.request import Bound, JobRequest, VerifyOptions
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.reports.page import render
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions
from mirrorless.verify.findings import KINDS
from spark.jobs.context import spark_context
from spark.jobs.driver import JobOutcome, JobRun
from spark.jobs.lane_copies import copy_lane, finished, wire_copy
from spark.jobs.lane_tasks import TaskAttempt, run_lanes
from spark.verify import verify
from tests.support.tampering import changed, tampered_with

ROOT = Path(__file__).parents[2]
TOPIC = "orders"
ROUNDS = 3
"""Of four runs each: Spark's JVM compiles for seconds of CPU in the first, and a run of two slots varies by a fifth."""
MORE = 1_000
"""Records of the batch with the fault."""


def fill(bootstrap: str, records: int, partitions: int) -> None:
    """Values of 200 bytes, some null, a tenth with headers."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000, "log_level": 0})
    pool = Random(1).randbytes(1 << 16)  # noqa: S311 -- the same records each time
    for number in range(records):
        value = None if number % 1000 == 7 else pool[number % 60_000 :][:200]
        headers: Any = [("n", b"%d" % number), ("n", None)] if number % 10 == 0 else None
        while True:
            try:
                producer.produce(TOPIC, value, b"%d" % number, number % partitions, None, None, 0, headers)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("the records were not written")


def copy_tasks(settings: FlowSettings, partitions: range) -> list[CopyTask]:
    """Everything that the source has."""
    log = KafkaLaneLog(settings.source, flow=settings.flow)
    tasks = []
    for partition in partitions:
        bounds = log.bounds(TOPIC, partition, deadline_in(30))
        tasks.append(
            CopyTask(
                settings=settings,
                lane_topic=TOPIC,
                read_topic=TOPIC,
                write_topic=settings.remote_topic(TOPIC),
                partition=partition,
                ranges=(OffsetRange(bounds.first, bounds.next),),
                run_id="backfill-1",
            )
        )
    return tasks


def verified(
    settings: FlowSettings,
    spark: SparkContext,
    folder: Path,
    *,
    against_source: bool,
    end: Bound = Bound("latest"),  # noqa: B008 -- frozen
) -> JobOutcome:
    """One run of the job."""
    options = VerifyOptions(against_source=against_source, end=end)
    request = JobRequest(run_id=folder.name, flow=settings, topics=(TOPIC,), options=options)
    run = JobRun(request, open_job_files(str(folder)), now_ms())
    run._context = spark
    outcome = verify(run)
    (folder / "report.html").write_text(render(outcome.report), encoding="utf-8")
    totals = outcome.found["totals"]
    print(
        f"verified: {totals['read']:,} records read in {totals['seconds']:.1f} s, {totals['records_per_second']:,} "
        f"records/s, {1e6 * totals['cpu_seconds'] / totals['read']:.2f} CPU-s of workers a million; "
        f"{totals['proved']:,} of {totals['records']:,} proved; {outcome.report.verdict}"
    )
    return outcome


def found(outcome: JobOutcome) -> dict[str, int]:
    """What is wrong, by kind."""
    return {kind: outcome.found["totals"][kind] for kind in KINDS if outcome.found["totals"][kind]}


def measure(
    folder: Path, settings: FlowSettings, *, records: int, partitions: int, against_source: bool
) -> tuple[bool, dict[str, float]]:
    """Do it; whether exactly what was planted was found, and the figures."""
    spark = _context(2)
    began = time.perf_counter()
    fill(settings.source.bootstrap, records, partitions)
    print(f"written: {records:,} records in {time.perf_counter() - began:.1f} s")

    began = time.perf_counter()
    tasks = [msgspec.json.encode(each) for each in copy_tasks(settings, range(partitions))]
    results = [msgspec.json.decode(each, type=CopyResult) for each in run_lanes(spark, copy_lane, tasks)]
    seconds = time.perf_counter() - began
    copied = sum(each.records for each in results)
    print(f"copied: {copied:,} records in {seconds:.1f} s, {copied / seconds:,.0f} records/s, Spark's start included")

    took: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for number, slots in enumerate((1, 2, 2, 1) * ROUNDS):  # in this order caches and warm brokers favour neither
        spark.stop()
        spark = _context(slots)
        # Workers have started and imported: one run of each lane, which no part of a range is smaller than.
        verified(settings, spark, folder / f"warm-{number}", against_source=against_source, end=Bound("offset", 1))
        clean = verified(settings, spark, folder / f"verify-{number}", against_source=against_source)
        totals = clean.found["totals"]
        took[slots].append((totals["seconds"], totals["cpu_seconds"]))
        if not clean.clean or found(clean):
            return False, {}
    one, two = ([sum(each) / len(each) for each in zip(*took[slots], strict=True)] for slots in (1, 2))
    figures = {
        "records": records,
        "lanes": partitions,
        "one_slot_seconds": round(one[0], 2),
        "two_slots_seconds": round(two[0], 2),
        "wall_ratio": round(two[0] / one[0], 3),
        "one_slot_cpu_seconds": round(one[1], 2),
        "two_slots_cpu_seconds": round(two[1], 2),
        "cpu_ratio": round(two[1] / one[1], 3),
    }
    print(f"two slots beside one: {figures}")

    fill(settings.source.bootstrap, MORE, 1)
    by_records = msgspec.structs.replace(settings, copy="records")  # a batch that passes cannot be tampered with
    copy = wire_copy(copy_tasks(by_records, range(1))[0], TaskAttempt(number=0, last=True))
    tampered_with(copy.replicator, {0: changed(MORE // 2, value=b"changed")})
    finished(copy, TaskAttempt(number=0, last=True))
    faulty = verified(settings, spark, folder / "verify-fault", against_source=against_source)
    finding = faulty.found["lanes"][0]["findings"]
    print(f"planted one fault, found {found(faulty)}: {finding}")
    spark.stop()
    return copied == records and found(faulty) == {"different": 1}, figures


def _context(slots: int) -> SparkContext:
    os.environ[SPARK_MASTER_VARIABLE] = f"local[{slots},4]"
    spark = spark_context("verify")
    spark.setLogLevel("ERROR")
    return spark


def main() -> int:
    """Start the servers, and measure."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=int, default=5_000_000)
    arguments.add_argument("--partitions", type=int, default=12)
    arguments.add_argument("--against-source", action="store_true")
    arguments.add_argument("--copy", choices=("auto", "records"), default="auto", help="by batches, or by records")
    arguments.add_argument("--figures", type=Path, help="a file for the ratios")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, target = (KafkaCluster(alias=alias, folder=folder / alias) for alias in ("us-east", "eu-west"))
        dynamodb = DynamoDbLocal(folder=folder / "dynamodb")
        servers = (source, target, dynamodb)
        try:
            for server in servers:
                server.start()
            os.environ |= {
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
                copy=given.copy,
            )
            for definition in definitions(settings.tables):
                dynamodb.client().create_table(**definition.create_request())
            for cluster, topic in ((source, TOPIC), (target, settings.remote_topic(TOPIC))):
                admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
                admin.create_topics([NewTopic(topic, given.partitions, 1)])[topic].result(20)
            held, figures = measure(
                folder,
                settings,
                records=given.records,
                partitions=given.partitions,
                against_source=given.against_source,
            )
            if given.figures:
                given.figures.write_text(json.dumps(figures))
            return 0 if held else 1
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    sys.exit(main())
