"""Backfills: a small one cold, one beside a live mapping, and a job's worker beside a bare loop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import msgspec
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from pyspark import SparkContext

from lab.audit.audit import audit_topic, totals, wait_until_replicated
from lab.cloud import Lab, create_topics
from mirrorless.adapters.kafka.target import producer_config
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.copy import choice
from mirrorless.flow.settings import FlowSettings, decode_settings
from mirrorless.jobs.copy_task import CHUNK_RECORDS, CopyResult, CopyTask
from mirrorless.jobs.request import REPORT, BackfillOptions, JobRequest, encode_request
from spark.jobs.context import spark_context
from spark.jobs.lane_copies import copy_all, copy_together
from spark.jobs.lane_tasks import TaskAttempt, Work
from tests.benchmarks.beside_mm2.flow import Writer
from tests.benchmarks.beside_mm2.records import fill, shape
from tests.benchmarks.beside_mm2.sides import Backfill
from tests.benchmarks.ground import REPOSITORY, Ground, Written, copy_task, grounded, produce, reader, variables
from tests.benchmarks.harness import Outcome
from tests.support.commands import replication_yaml
from tests.support.spark_cluster import workers
from tests.support.waiting import eventually

TOPIC = "orders"
LIMIT_CPU_SECONDS, LIMIT_SECONDS = 15.0, 15.0
FAULTS = ("lost", "duplicated", "reordered", "different", "mistranslated")


# A small one, cold


def small(*, records: int = 300_000, batch: int = 256_000) -> Outcome:
    """A cold backfill of 300,000 records of 1 KB in six lanes, from its process' start to its exit.

    Args: batch: bytes of a batch of the source.
    """
    history = shape(1_000, 6, records, batch=batch)
    with grounded(quick_start=False) as ground:
        ground.create({TOPIC: history.partitions})
        fill(ground.source.bootstrap, [TOPIC], history)
        job, began, resident = Backfill(ground, alias="small", topic=TOPIC), time.monotonic(), [0.0]
        job.begin_start()
        try:
            job.await_exit(seconds=600, look=lambda: resident.append(job.resident_mb()))
            seconds, report = time.monotonic() - began, json.loads((job.folder / REPORT).read_bytes())
        finally:
            job.discard()
    cpu = job.cpu().replicator
    wrong, copied = [], report["totals"]["records"]
    if copied != history.count:
        wrong.append(f"{copied:,} of {history.count:,} records were copied")
    if cpu > LIMIT_CPU_SECONDS or seconds > LIMIT_SECONDS:
        wrong.append(f"the limits are {LIMIT_SECONDS:.0f} s, and as much of CPU")
    figures = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "resident_mb": round(max(resident))}
    return Outcome(figures, wrong)


# One beside a live mapping

LIVE_RATE = 10
"""Records a second to each partition, from before the job until behind it."""
FLOW = f"""us-east->eu-west:
    topics: [{TOPIC}]
    start: backfill
    replication.factor: 1
    mapping: {{batch.size: 500, maximum.batching.window.seconds: 0}}"""


def live(*, records: int = 2_000_000, partitions: int = 12, kills: int = 0) -> Outcome:
    """A whole backfill beside a live mapping, whose workers are killed, and which is run again.

    Producers write to every partition from before the job until behind it. Args: kills: of Python workers of the job,
    which is run again from the start afterwards.
    """
    with TemporaryDirectory(prefix="backfill-live-") as name:
        folder = Path(name)
        lab = Lab(configuration=load(replication_yaml(FLOW)), folder=folder / "lab", control=False, say=lambda _: None)
        try:
            lab.start_servers()
            (flow,) = lab.flows
            source = flow.source.bootstrap[0]
            create_topics(source, [NewTopic(TOPIC, partitions, 1)])
            _history(source, records, partitions)
            lab.start_flows()
            with Writer(source, TOPIC, partitions, LIVE_RATE * partitions) as writer:
                jobs = [_job(lab, flow, folder / "backfill-1", kills)]
                jobs += [_job(lab, flow, folder / "backfill-2", 0)] * bool(kills)
            wait_until_replicated(lab, lab.flow_mappings, deadline=time.monotonic() + 120)
            found = totals(audit_topic(lab, flow, TOPIC).rows)
        finally:
            lab.stop()
    return Outcome(
        {"audit": found, "live": writer.written, "jobs": [each["totals"] for each in jobs]},
        [f"{found[fault]} records are {fault}" for fault in FAULTS if found[fault]]
        + [f"the source refused {writer.refused} live records"] * bool(writer.refused),
    )


def _history(bootstrap: str, records: int, partitions: int) -> None:
    """Records with nulls, headers, and transactions of which some are taken back."""
    options = {"bootstrap.servers": bootstrap, "transactional.id": uuid4().hex, "linger.ms": 20, "log_level": 0}
    producer = Producer(options | {"transaction.timeout.ms": 60_000})
    producer.init_transactions(30)
    pool, number, transactions, size = bytes(range(256)) * 256, 0, 0, max(500, records // 40)
    while number < records:
        transactions += 1
        aborted = transactions % 10 == 3
        producer.begin_transaction()
        for _ in range(size // 20 if aborted else min(size, records - number)):
            value = None if number % 1000 == 7 else pool[number % 60_000 :][:200]
            headers: Any = [("n", b"%d" % number), ("n", None)] if number % 10 == 0 else None
            while True:
                try:
                    producer.produce(TOPIC, value, b"%d" % number, number % partitions, None, None, 0, headers)
                    break
                except BufferError:
                    producer.poll(0.1)
            number += not aborted
        producer.flush(60)
        (producer.abort_transaction if aborted else producer.commit_transaction)(60)


def _job(lab: Lab, flow: Flow, folder: Path, kills: int) -> dict[str, Any]:
    """A backfill as its own process, as `--local` starts it; its report."""
    folder.mkdir(parents=True)
    settings, options = decode_settings(flow.function_settings_json()), BackfillOptions(handover_seconds=20)
    request = JobRequest(run_id=folder.name, flow=settings, topics=(TOPIC,), options=options)
    (folder / "request.json").write_bytes(encode_request(request))
    log, script = folder / "log", str(REPOSITORY / "spark" / "backfill.py")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, script, str(folder)],
            env=os.environ | variables(lab.dynamodb),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        for _ in range(kills):
            eventually(lambda: workers(process.pid), f"a worker of {folder.name} to kill")
            workers(process.pid)[0].kill()
            time.sleep(1.0)  # for the next task to be under way: kills are at random
        if code := process.wait(1800):
            raise RuntimeError(f"exit code {code}:\n" + log.read_text(errors="replace")[-3000:])
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    found: dict[str, Any] = json.loads((folder / REPORT).read_bytes())
    return found


# A job's worker beside a bare loop


@cache
def bare_clients(source: str, settings: bytes) -> tuple[Consumer, Producer]:
    """The process's warm ones, with the settings that ours have."""
    config = producer_config(msgspec.json.decode(settings, type=FlowSettings))
    producer = Producer(config | {"transactional.id": uuid4().hex})
    producer.init_transactions(30)
    return reader(source, enable_partition_eof=True, fetch_wait_max_ms=20, fetch_queue_backoff_ms=5), producer


def bare_copies(task: bytes, _: TaskAttempt) -> bytes:
    """The lanes of a task, one after the other: consume, produce in transactions, and no map."""
    return msgspec.json.encode([_bare_copy(lane) for lane in msgspec.json.decode(task, type=list[CopyTask])])


def _bare_copy(lane: CopyTask) -> CopyResult:
    began, cpu = time.perf_counter(), time.process_time()
    consumer, producer = bare_clients(lane.settings.source.bootstrap, msgspec.json.encode(lane.settings))
    topic, partition = lane.write_topic, lane.partition
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
                at, headers = message.timestamp()[1], message.headers()
                producer.produce(topic, message.value(), message.key(), partition, None, None, at, headers)
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


def copy_by_batches(task: bytes, attempt: TaskAttempt) -> bytes:
    """`copy_together`, which leaves no lane to the Kafka client."""
    choice.LEAST_SAVED_US = float("inf")  # type: ignore[misc]  # in this worker alone
    return copy_together(task, attempt)


def _with_peak(work: Work, task: bytes, attempt: TaskAttempt) -> bytes:
    """The work, whose results have the most resident memory of their worker, in MB, in the place of their races."""
    Path("/proc/self/clear_refs").write_text("5")
    results = msgspec.json.decode(work(task, attempt), type=list[CopyResult])
    status = Path("/proc/self/status").read_text()
    (peak,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return msgspec.json.encode([msgspec.structs.replace(each, races=peak // 1024) for each in results])


def parts(
    *,
    records: int = 1_000_000,
    size: int = 200,
    batch_kb: tuple[int, ...] = (16, 256),
    partitions: int = 12,
    rounds: int = 5,
    only: tuple[str, ...] = ("bare", "records", "batches"),
) -> Outcome:
    """Speed of a job's copy by records and by whole batches, on one Spark in alternating rounds.

    Wall time is of the whole Spark job once its workers are warm; CPU is of the Python workers, the clients' threads
    included, and so is the most resident memory of a worker. Clusters, DynamoDB Local and Spark share this machine.

    Args:
        records: of the topic.
        size: bytes of a value.
        batch_kb: of the source's batches.
        partitions: of the topic.
        rounds: of each; one more warms up.
        only: of the three, for the memory of one of them alone.
    """
    with grounded() as ground:
        spark = spark_context("benchmark")
        settings = ground.settings()
        works = {
            "bare": (bare_copies, settings),
            "records": (copy_together, ground.settings(copying="records")),
            "batches": (copy_by_batches, settings),
        }
        for kb in batch_kb:
            topic = f"history-{kb}"
            each = records // partitions
            ground.create({topic: partitions})
            values: Iterator[Written] = (
                (number % partitions, b"%08d" % number, os.urandom(size), []) for number in range(each * partitions)
            )
            gathered = {"linger_ms": 1_000, "batch_size": kb * 1024, "compression_type": "lz4"}
            produce(ground.source.bootstrap, topic, values, **gathered)
            found: dict[str, list[tuple[float, float, float]]] = {what: [] for what in only}
            for number in range(rounds + 1):
                for what, rows in found.items():
                    took = _copied(ground, spark, topic, f"{what}-{number}", *works[what], each)
                    rows.extend([took] if number else ())
                    print(f"{kb} KB, {what}, round {number}: {_said(*took)}", flush=True)
            for what, rows in found.items():
                print(f"{kb} KB, {what}, medians: {_said(*map(median, zip(*rows, strict=True)))}", flush=True)
        spark.stop()
    return Outcome({})


def _said(per_second: float, per_cpu_second: float, peak_mb: float) -> str:
    return f"{per_second:,.0f} records/s, {per_cpu_second:,.0f} records per CPU-second, {peak_mb:.0f} MB"


def _copied(  # noqa: PLR0917 -- one copy's
    ground: Ground, spark: SparkContext, topic: str, name: str, work: Work, settings: FlowSettings, per_lane: int
) -> tuple[float, float, float]:
    """One copy of the whole topic, into a topic that is deleted afterwards: records a second, a CPU-second, and MB."""
    copy, lanes = f"copy-{name}", ground.partitions[topic]
    ground.create_remote({copy: lanes})
    places = {"lane_topic": f"{topic}#{name}", "write_topic": copy, "run_id": name}
    tasks = [copy_task(settings, topic, partition, per_lane, **places) for partition in range(lanes)]
    began = time.perf_counter()
    results = copy_all(spark, tasks, work=partial(_with_peak, work))
    seconds = time.perf_counter() - began
    ground.drop(copy)
    records = sum(each.records for each in results)
    if any(each.state != "done" for each in results) or records != per_lane * lanes:
        raise RuntimeError(f"not everything was copied: {[each.error for each in results]}")
    return records / seconds, records / sum(each.cpu_seconds for each in results), max(each.races for each in results)
