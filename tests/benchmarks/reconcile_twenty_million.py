"""A reconcile of twenty million records: two million are new on the target, and the source has orphans and conflicts.

    18 million records on the source  ->  copied by whole batches
    the source is lost: 10,000 records were never replicated; 2 million are written on the target, 500 with their keys
    the reconcile  ->  audited by a client of Kafka's own: what came back, its order, orphans, conflicts, translations
    live records   ->  copied by the flow: nothing of what came back returns to the target

    python -m tests.benchmarks.reconcile_twenty_million [--records 200000] [--figures FILE]

Every figure but the 12 partitions follows from `--records`. Real clusters, DynamoDB Local and Spark share this
machine's cores; Spark is one JVM of 768 MB with two workers, which together are an executor: they may have 2 GB. Exits
1 when anything else is found than what was written, or when the memory is exceeded.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self

import msgspec
import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkContext

from lab.audit.topic_reader import stable_ends
from lab.audit.translations import LoadedChains
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.clock import now_ms
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.request import JobRequest, ReconcileOptions
from mirrorless.lane import Lane
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.reports.page import render
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions
from spark.jobs.context import spark_context
from spark.jobs.driver import JobOutcome, JobRun
from spark.jobs.lane_copies import copy_lane
from spark.jobs.lane_tasks import run_lanes
from spark.reconcile import ReconcileStep, Reconciliation

ROOT = Path(__file__).parents[2]
TOPIC: Final = "orders"
PARTITIONS: Final = 12
VALUE_BYTES: Final = 100
EXECUTOR_MB: Final = 2048
LIVE: Final = 100
"""Records of each lane, written on the source after the reconcile."""

TRANSLATED: Final = 20
"""One of so many records is translated both ways."""

_SILENT_SECONDS: Final = 60.0
_POOL: Final = Random(1).randbytes(1 << 16)  # noqa: S311 -- the same records each time


class Written(NamedTuple):
    """One record."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class History:
    """What each side has before the reconcile; every figure is of all lanes together."""

    records: int
    """On the target when the reconcile begins."""

    @property
    def new(self) -> int:
        """Records that only the target has."""
        return self.records // 10

    @property
    def replicated(self) -> int:
        """Records that both sides have."""
        return self.records - self.new

    @property
    def orphans(self) -> int:
        """Records that only the source has."""
        return self.records // 2_000

    @property
    def conflicts(self) -> int:
        """Keys that have an orphan and a new record."""
        return self.records // 40_000

    def of(self, partition: int, whole: int) -> int:
        """The share of one lane."""
        return whole // PARTITIONS + (partition < whole % PARTITIONS)

    def replicated_record(self, partition: int, number: int) -> Written:
        """Of one lane, by its number there."""
        return _written(b"r", partition, number)

    def orphan(self, partition: int, number: int) -> Written:
        """As above; the first ones have the keys of the conflicts."""
        conflicting = number < self.of(partition, self.conflicts)
        return _written(b"c" if conflicting else b"o", partition, number)

    def new_record(self, partition: int, number: int) -> Written:
        """As above; those of the conflicts are spread over all."""
        conflicts, new = self.of(partition, self.conflicts), self.of(partition, self.new)
        every = new // conflicts if conflicts else 0
        which, rest = divmod(number, every) if every else (0, 1)
        if rest == 0 and which < conflicts:
            return _written(b"c", partition, which)
        return _written(b"n", partition, number)

    def live(self, partition: int, number: int) -> Written:
        """As above."""
        return _written(b"l", partition, number)


def _written(kind: bytes, partition: int, number: int) -> Written:
    key = b"%s-%d-%d" % (kind, partition, number)
    return Written(key, _POOL[(number * 7 + partition) % 65_000 :][:VALUE_BYTES])


def fill(bootstrap: str, topic: str, partitions: range, count: Callable[[int], int], made: Any) -> None:
    """Write some records of each partition, in order, in large batches."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 256 * 1024,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    step = 5_000
    for first in range(0, max(map(count, partitions)), step):
        for partition in partitions:
            some = [made(partition, number) for number in range(first, min(first + step, count(partition)))]
            wanted = [{"key": key, "value": value} for key, value in some]
            if producer.produce_batch(topic, wanted, partition) != len(wanted):
                raise RuntimeError("the producer refused records")
            while len(producer) > 500_000:
                producer.poll(0.05)
    if producer.flush(300):
        raise RuntimeError("the records were not written")


def fill_side_by_side(bootstrap: str, topic: str, history: History, whole: int, made: Any) -> None:
    """The same by two processes."""
    context = multiprocessing.get_context("fork")
    count = partial(_share, history, whole)
    halves = (range(PARTITIONS // 2), range(PARTITIONS // 2, PARTITIONS))
    processes = [context.Process(target=fill, args=(bootstrap, topic, half, count, made)) for half in halves]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    if any(each.exitcode for each in processes):
        raise RuntimeError("the records were not written")


def _share(history: History, whole: int, partition: int) -> int:
    return history.of(partition, whole)


class Executor:
    """The memory of Spark's processes, sampled: the JVM and its workers, all that this process has as descendants."""

    def __init__(self, beside: set[int]) -> None:
        """Args: beside: processes that are not Spark's."""
        self._beside = beside
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most = 0
        self.most_worker = 0
        self.most_driver = 0
        self._cpu: dict[tuple[int, float], float] = {}

    @property
    def cpu_seconds(self) -> float:
        """Of all of them, and of the driver."""
        return sum(self._cpu.values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        before = own.cpu_times()
        while not self._over.wait(0.5):
            sizes = {}
            for each in own.children(recursive=True):
                try:
                    if each.pid in self._beside:
                        continue
                    times = each.cpu_times()
                    self._cpu[each.pid, each.create_time()] = times.user + times.system
                    # Workers are forked: pages that they share with each other count once.
                    sizes[each.pid] = (each.memory_full_info().pss, each.name())
                except psutil.Error:
                    continue  # it ended
            now = own.cpu_times()
            self._cpu[own.pid, 0.0] = now.user + now.system - before.user - before.system
            self.most = max(self.most, sum(size for size, _ in sizes.values()) >> 20)
            workers = [size for size, name in sizes.values() if "java" not in name]
            self.most_worker = max([self.most_worker, *(size >> 20 for size in workers)])
            self.most_driver = max(self.most_driver, own.memory_info().rss >> 20)


@dataclass(slots=True)
class Audit:
    """What a client of Kafka's own finds, lane by lane."""

    wrong: list[str] = field(default_factory=list)

    def same(self, what: str, found: object, expected: object) -> None:
        """Note a difference."""
        if found != expected:
            self.wrong.append(f"{what}: {str(found)[:300]}, expected {str(expected)[:300]}")

    def offsets(
        self, where: str, records: Iterator[tuple[int, int, Written]], expected: Iterator[Written]
    ) -> tuple[array[int], array[int]]:
        """The offsets and timestamps of records, which must be exactly the expected ones in their order."""
        offsets, timestamps = array("q"), array("q")
        for number, wanted in enumerate(expected):
            offset, at, found = next(records, (-1, -1, None))
            if found != wanted:
                self.wrong.append(f"{where}: record {number} is {found} at {offset}, expected {wanted}")
                return offsets, timestamps
            offsets.append(offset)
            timestamps.append(at)
        if (more := next(records, None)) is not None:
            self.wrong.append(f"{where}: more than was expected, from {more} on")
        return offsets, timestamps


def read(bootstrap: str, topic: str, partition: int, first: int, end: int) -> Iterator[tuple[int, int, Written]]:
    """Every visible record of a partition from an offset on, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "audit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 8 << 20,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        at, silent = first, time.monotonic() + _SILENT_SECONDS
        while at < end:
            some = consumer.consume(10_000, timeout=0.2)
            if some:
                silent = time.monotonic() + _SILENT_SECONDS
            elif time.monotonic() > silent:
                raise RuntimeError(f"{topic}-{partition} cannot be read from {at} on")
            for each in some:
                offset: Any = each.offset()
                if (error := each.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    at = max(at, offset)
                    continue
                at = offset + 1
                key: Any = each.key()
                value: Any = each.value()
                yield offset, each.timestamp()[1], Written(key, value)
    finally:
        consumer.close()


def copy_all(spark: SparkContext, settings: FlowSettings, run_id: str) -> list[CopyResult]:
    """Everything that the source has, by the jobs' engine."""
    tasks = [
        CopyTask(
            settings=settings,
            lane_topic=TOPIC,
            read_topic=TOPIC,
            write_topic=settings.remote_topic(TOPIC),
            partition=partition,
            ranges=(OffsetRange(0, end),),
            run_id=run_id,
        )
        for partition, end in stable_ends(settings.source.bootstrap, TOPIC).items()
    ]
    found = run_lanes(spark, copy_lane, [msgspec.json.encode(task) for task in tasks])
    return [msgspec.json.decode(each, type=CopyResult) for each in found]


@dataclass(slots=True, kw_only=True)
class Measurement:
    """One run of it all."""

    history: History
    settings: FlowSettings
    spark: SparkContext
    folder: Path
    beside: set[int]
    audit: Audit = field(default_factory=Audit)
    figures: dict[str, Any] = field(default_factory=dict)
    _marked: float = 0.0

    def run(self) -> None:
        """Do it all; figures and what is wrong are noted."""
        source, target, remote = self.settings.source.bootstrap, self.settings.target.bootstrap, self._remote
        history = self.history
        with self.phase("write"):
            fill_side_by_side(source, TOPIC, history, history.replicated, history.replicated_record)
        with self.phase("backfill"):
            copied = copy_all(self.spark, self.settings, "backfill-1")
        self.audit.same("backfilled", sum(each.records for each in copied), history.replicated)
        before = stable_ends(source, TOPIC), stable_ends(target, remote)
        with self.phase("outage"):
            fill(source, TOPIC, range(PARTITIONS), partial(_share, history, history.orphans), history.orphan)
            fill_side_by_side(target, remote, history, history.new, history.new_record)
        with Executor(self.beside) as memory, self.phase("reconcile"):
            outcome = self._reconcile()
        self.figures |= {
            "reconcile_cpu_seconds": round(memory.cpu_seconds, 1),
            "executor_mb": memory.most,
            "worker_mb": memory.most_worker,
            "driver_mb": memory.most_driver,
        }
        self.audit.same("within the executor's memory", memory.most <= EXECUTOR_MB, expected=True)
        with self.phase("live"):
            count = partial(_share, history, LIVE * PARTITIONS)
            fill(source, TOPIC, range(PARTITIONS), count, history.live)
            again = copy_all(self.spark, self.settings, "live-1")
        self.audit.same("written live", sum(each.written for each in again), LIVE * PARTITIONS)
        with self.phase("audit"):
            self._found(outcome)
            for partition in range(PARTITIONS):
                self._lane(partition, before[0][partition], before[1][partition], outcome)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        began = time.monotonic()
        yield
        self.figures[f"{name}_seconds"] = round(time.monotonic() - began, 1)
        print(f"{name:<12} {self.figures[f'{name}_seconds']:7.1f} s", flush=True)

    @property
    def _remote(self) -> str:
        return self.settings.remote_topic(TOPIC)

    def _reconcile(self) -> JobOutcome:
        request = JobRequest(
            run_id="reconcile-1", flow=self.settings, topics=(TOPIC,), options=ReconcileOptions(policy="report")
        )
        run = JobRun(request, open_job_files(str(self.folder / "reconcile-1")), now_ms())
        run._context = self.spark
        self._marked = time.monotonic()
        outcome = Reconciliation(run, on_step=self._step, settle_ms=0, still_seconds=1).act()
        (self.folder / "report.html").write_text(render(outcome.report), encoding="utf-8")
        return outcome

    def _step(self, step: ReconcileStep) -> None:
        now = time.monotonic()
        self.figures[f"{step.replace(' ', '_')}_seconds"] = round(now - self._marked, 1)
        print(f"  {step:<10} {now - self._marked:7.1f} s", flush=True)
        self._marked = now

    def _found(self, outcome: JobOutcome) -> None:
        totals, history = outcome.found["totals"], self.history
        expected = {
            "records": history.records,
            "new": history.new,
            "copied_back": history.new,
            "orphans": history.orphans,
            "conflicts": history.conflicts,
            "unmapped": 0,
            "failed": 0,
            "differing": 0,
            "groups_not_ready": 0,
        }
        self.audit.same("totals", {name: totals[name] for name in expected}, expected)
        # The lanes were not held before, since no forwarder runs beside: the job says so.
        self.audit.same("work that is left", [each for each in outcome.found["troubles"] if "hold" not in each], [])

    def _lane(self, partition: int, upstream: int, downstream: int, outcome: JobOutcome) -> None:
        """Audit one lane; both offsets are the ends of the logs before the outage."""
        history, where, audit = self.history, f"{TOPIC}-{partition}", self.audit
        orphans = [history.orphan(partition, n) for n in range(history.of(partition, history.orphans))]
        live = [history.live(partition, n) for n in range(LIVE)]

        def new() -> Iterator[Written]:
            return (history.new_record(partition, n) for n in range(history.of(partition, history.new)))

        source, target = self.settings.source.bootstrap, self.settings.target.bootstrap
        source_end = stable_ends(source, TOPIC)[partition]
        target_end = stable_ends(target, self._remote)[partition]
        here, made = audit.offsets(
            f"{where} on the source",
            read(source, TOPIC, partition, upstream, source_end),
            chain(orphans, new(), live),
        )
        there, made_there = audit.offsets(
            f"{where} on the target",
            read(target, self._remote, partition, downstream, target_end),
            chain(new(), live),
        )
        if audit.wrong:
            return
        audit.same(f"{where}: timestamps", made[len(orphans) : -LIVE], made_there[:-LIVE])
        (found,) = [each for each in outcome.found["lanes"] if each["partition"] == partition]
        audit.same(
            f"{where}: orphans",
            [(each["first"], each["next"], each["records"]) for each in found["orphans"]],
            [(here[0], here[len(orphans) - 1] + 1, len(orphans))] if orphans else [],
        )
        expected = {b"c-%d-%d" % (partition, n) for n in range(history.of(partition, history.conflicts))}
        audit.same(f"{where}: keys", {each["key"].encode() for each in found["conflicting"]}, expected)
        self._translations(partition, here[len(orphans) :], there)
        lane = Lane(self.settings.name, TOPIC, partition)
        ledger = DynamoDbLossLedger(dynamodb_client("us-east-1", None), self.settings.tables.loss_ledger)
        noted = [(each.first, each.next, each.cause) for each in ledger.read(lane)]
        audit.same(
            f"{where}: the ledger", noted, [(here[0], here[len(orphans) - 1] + 1, "orphaned")] if orphans else []
        )

    def _translations(self, partition: int, here: array[int], there: array[int]) -> None:
        lane = Lane(self.settings.name, TOPIC, partition)
        chains = DynamoDbChains(dynamodb_client("us-east-1", None), self.settings.tables.offset_map)
        offsets = LoadedChains(chains, lane).offset_map()
        wrong = 0
        for upstream, downstream in list(zip(here, there, strict=True))[::TRANSLATED]:
            down, up = offsets.downstream(lane, upstream), offsets.upstream(lane, downstream)
            wrong += (down.offset, down.state, up.offset, up.state) != (downstream, "exact", upstream, "exact")
        self.audit.same(f"{TOPIC}-{partition}: mistranslated", wrong, 0)


def main() -> int:
    """Start the servers, and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write the figures there, as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reconcile-") as name:
        folder = Path(name)
        source, target = (KafkaCluster(alias=alias, folder=folder / alias) for alias in ("us-east", "eu-west"))
        dynamodb = DynamoDbLocal(folder=folder / "dynamodb", in_memory=True)
        servers = (source, target, dynamodb)
        try:
            for server in servers:
                server.begin_start()
            for server in servers:
                server.wait_ready()
            os.environ |= {
                SPARK_MASTER_VARIABLE: "local[2,4]",
                # A Java of one core or less than 2 GB takes this collector by itself, as the smallest executors do.
                "PYSPARK_SUBMIT_ARGS": "--driver-memory 768m --driver-java-options -XX:+UseSerialGC pyspark-shell",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
                "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
                "AWS_ACCESS_KEY_ID": "lab",
                "AWS_SECRET_ACCESS_KEY": "lab",
            }
            beside = {each.pid for each in psutil.Process().children(recursive=True)}
            settings = FlowSettings(
                flow="us-east->eu-west",
                source=ClusterSettings(alias="us-east", bootstrap=source.bootstrap),
                target=ClusterSettings(alias="eu-west", bootstrap=target.bootstrap, region="us-east-1"),
                replication_factor=1,
            )
            for definition in definitions(settings.tables):
                dynamodb.client().create_table(**definition.create_request())
            for cluster, topic in ((source, TOPIC), (target, settings.remote_topic(TOPIC))):
                admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
                config = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(1 << 62)}
                admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(20)
            spark = spark_context("reconcile twenty million")
            spark.setLogLevel("ERROR")
            measurement = Measurement(
                history=History(given.records), settings=settings, spark=spark, folder=folder, beside=beside
            )
            measurement.run()
            spark.stop()
        finally:
            for server in servers:
                server.stop()
    for each in measurement.audit.wrong:
        print(each, file=sys.stderr)
    history = measurement.history
    figures = {
        "records": history.records,
        "new": history.new,
        "orphans": history.orphans,
        "conflicts": history.conflicts,
        **measurement.figures,
    }
    print(json.dumps(figures))
    if given.figures is not None:
        given.figures.write_text(json.dumps(figures))
    return int(bool(measurement.audit.wrong))


if __name__ == "__main__":
    # By the module's own name: workers import functions by name, and `__main__` is another module there.
    from tests.benchmarks.reconcile_twenty_million import main as measure

    sys.exit(measure())
