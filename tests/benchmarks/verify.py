"""Verification of many records: nothing in a good copy, exactly one planted fault, and what a second core gives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
from pyspark import SparkContext

from lab.audit.topic_reader import stable_ends
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.clock import now_ms
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import CopyTask
from mirrorless.jobs.request import Bound, JobRequest, VerifyOptions
from mirrorless.verify.findings import KINDS
from spark.jobs.context import spark_context
from spark.jobs.driver import JobOutcome, JobRun
from spark.jobs.lane_copies import copy_all, wire_copy
from spark.jobs.lane_tasks import TaskAttempt
from spark.verify import verify
from tests.benchmarks.ground import Ground, Headers, Written, copy_task, grounded, produce
from tests.benchmarks.harness import Outcome
from tests.support.tampering import changed, tampered_with

TOPIC = "orders"
MORE = 1_000
"""Records of the batch with the fault."""


def measure(
    *,
    records: int = 5_000_000,
    partitions: int = 12,
    against_source: bool = False,
    copy: str = "auto",
    rounds: int = 3,
) -> Outcome:
    """A verification of 20 million records, and of one planted fault.

    Then one more batch comes, one byte of it changed on its way, and exactly that is found.

    Args:
        records: in all.
        partitions: one is one lane alone, 240 are many small ones.
        against_source: whether both sides are read and compared.
        copy: `auto`, or by `records`.
        rounds: of four runs: Spark's JVM compiles for seconds of CPU in the first, and a run of two slots varies by a
            fifth.
    """
    with grounded(aliases=("us-east", "eu-west")) as ground:
        settings, source = ground.settings(copying=copy), ground.source.bootstrap
        ground.create({TOPIC: partitions})
        ground.create_remote({settings.remote_topic(TOPIC): partitions})
        produce(source, TOPIC, _values(records, partitions))
        spark = _context(ground, 2)
        copied = sum(each.records for each in copy_all(spark, _tasks(settings)))
        took: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for number, slots in enumerate((1, 2, 2, 1) * rounds):  # so caches and warm brokers favour neither
            spark.stop()
            spark = _context(ground, slots)
            # Workers have started and imported: one run of each lane, which no part of a range is smaller than.
            warm, full = ground.folder / f"warm-{number}", ground.folder / f"verify-{number}"
            _verified(settings, spark, warm, against_source=against_source, end=Bound("offset", 1))
            clean = _verified(settings, spark, full, against_source=against_source)
            totals = clean.found["totals"]
            took[slots].append((totals["seconds"], totals["cpu_seconds"]))
            if not clean.clean or _found(clean):
                return Outcome({}, [f"in a good copy: {_found(clean)}, {clean.report.verdict}"])
        produce(source, TOPIC, _values(MORE, 1))
        by_records = msgspec.structs.replace(settings, copying="records")  # a batch that passes cannot be tampered with
        faulty = wire_copy(_tasks(by_records)[:1], TaskAttempt(number=0, last=True))
        tampered_with(faulty.replicator, {0: changed(MORE // 2, value=b"changed")})
        faulty.run()
        found = _found(_verified(settings, spark, ground.folder / "verify-fault", against_source=against_source))
        spark.stop()
    one, two = ([sum(each) / len(each) for each in zip(*took[slots], strict=True)] for slots in (1, 2))
    figures: dict[str, float] = {"records": records, "lanes": partitions}
    for name, ratio, by_one, by_two in zip(("seconds", "cpu_seconds"), ("wall", "cpu"), one, two, strict=True):
        figures |= {f"one_slot_{name}": round(by_one, 2), f"two_slots_{name}": round(by_two, 2)}
        figures[f"{ratio}_ratio"] = round(by_two / by_one, 3)
    wrong = [] if copied == records else [f"{copied} of {records} records were copied"]
    return Outcome(figures, wrong + [f"planted one fault, found {found}"] * (found != {"different": 1}))


def _values(records: int, partitions: int) -> Iterator[Written]:
    """Values of 200 bytes, some null, a tenth with headers."""
    pool = Random(1).randbytes(1 << 16)
    for number in range(records):
        value = None if number % 1000 == 7 else pool[number % 60_000 :][:200]
        headers: Headers = [("n", b"%d" % number), ("n", None)] if number % 10 == 0 else []
        yield number % partitions, b"%d" % number, value, headers


def _tasks(settings: FlowSettings) -> list[CopyTask]:
    """Everything that the source has."""
    ends = stable_ends(settings.source.bootstrap, TOPIC)
    return [copy_task(settings, TOPIC, partition, end) for partition, end in sorted(ends.items())]


def _verified(
    settings: FlowSettings, spark: SparkContext, folder: Path, *, against_source: bool, end: Bound | None = None
) -> JobOutcome:
    """One run of the job."""
    options = VerifyOptions(against_source=against_source, end=end or Bound("latest"))
    request = JobRequest(run_id=folder.name, flow=settings, topics=(TOPIC,), options=options)
    run = JobRun(request, open_job_files(str(folder)), now_ms())
    run._context = spark
    began = time.monotonic()
    outcome = verify(run)
    totals = outcome.found["totals"]
    cpu = 1e6 * totals["cpu_seconds"] / max(1, totals["read"])
    print(
        f"{folder.name}, {time.monotonic() - began:.1f} s: {totals['read']:,} records in {totals['seconds']:.1f} s, "
        f"{totals['records_per_second']:,} records/s, {cpu:.2f} CPU-s of workers a million; "
        f"{totals['proved']:,} of {totals['records']:,} proved; {outcome.report.verdict}",
        flush=True,
    )
    return outcome


def _found(outcome: JobOutcome) -> dict[str, int]:
    """What is wrong, by kind."""
    return {kind: outcome.found["totals"][kind] for kind in KINDS if outcome.found["totals"][kind]}


def _context(ground: Ground, slots: int) -> SparkContext:
    os.environ |= ground.variables(slots)
    spark = spark_context("verify")
    spark.setLogLevel("ERROR")
    return spark
