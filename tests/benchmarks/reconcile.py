"""Reconciles: one of many records with an audit, the memory of its decisions, and copying back over a distance."""

from __future__ import annotations

import os
import resource
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from pyspark import SparkContext

from lab.audit.audit import LoadedChains
from lab.audit.topic_reader import stable_ends
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Run
from mirrorless.clock import now_ms
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.copy_task import CopyResult, OffsetRange
from mirrorless.jobs.request import JobRequest, ReconcileOptions
from mirrorless.reconcile.difference import apart, claims_of, seen_in
from mirrorless.reconcile.join import copies_above, joined, places_of
from mirrorless.reconcile.tasks import ReconciledLane, back_tasks
from mirrorless.records.record import Record
from spark.jobs.context import spark_context
from spark.jobs.driver import JobOutcome, JobRun
from spark.jobs.lane_copies import copy_all
from spark.reconcile import Reconciliation
from tests.benchmarks.beside_mm2.records import fill, shape
from tests.benchmarks.ground import Written, copy_task, grounded, produce, reader
from tests.benchmarks.harness import Meter, Outcome, family
from tests.support.chains import run

TOPIC: Final = "orders"
PARTITIONS: Final = 12
ALIASES: Final = ("us-east", "eu-west")


# Many records

VALUE_BYTES: Final = 100
EXECUTOR_MB: Final = 2048
LIVE: Final = 100
"""Records of each lane, written on the source after the reconcile."""
TRANSLATED: Final = 20
"""One of so many records is translated both ways."""
SILENT_SECONDS: Final = 60.0
POOL: Final = Random(1).randbytes(1 << 16)
DRIVER: Final = "--driver-memory 768m --driver-java-options -XX:+UseSerialGC pyspark-shell"
"""A Java of one core or less than 2 GB takes this collector by itself, as the smallest executors do."""

Pair = tuple[bytes, bytes]
"""Key and value."""


def _written(kind: bytes, partition: int, number: int) -> Pair:
    return b"%s-%d-%d" % (kind, partition, number), POOL[(number * 7 + partition) % 65_000 :][:VALUE_BYTES]


@dataclass(frozen=True, slots=True)
class History:
    """What each side of a lane has, each kind of record in its order. The figures are of all lanes together."""

    records: int
    """On the target when the reconcile begins."""

    @property
    def new(self) -> int:
        """Records that only the target has."""
        return self.records // 10

    @property
    def orphans(self) -> int:
        """Records that only the source has."""
        return self.records // 2_000

    @property
    def conflicts(self) -> int:
        """Keys that have an orphan and a new record."""
        return self.records // 40_000

    def share(self, partition: int, whole: int) -> int:
        """Of one lane."""
        return whole // PARTITIONS + (partition < whole % PARTITIONS)

    def replicated_records(self, partition: int) -> Iterator[Pair]:
        """That both sides have."""
        return (_written(b"r", partition, n) for n in range(self.share(partition, self.records - self.new)))

    def orphaned_records(self, partition: int) -> Iterator[Pair]:
        """The first ones have the keys of the conflicts."""
        conflicts = self.share(partition, self.conflicts)
        for number in range(self.share(partition, self.orphans)):
            yield _written(b"c" if number < conflicts else b"o", partition, number)

    def new_records(self, partition: int) -> Iterator[Pair]:
        """Those of the conflicts are spread over all."""
        conflicts, new = self.share(partition, self.conflicts), self.share(partition, self.new)
        every = new // conflicts if conflicts else new + 1
        for number in range(new):
            which, rest = divmod(number, every)
            conflicting = rest == 0 and which < conflicts
            yield _written(b"c", partition, which) if conflicting else _written(b"n", partition, number)

    def live_records(self, partition: int) -> Iterator[Pair]:
        """Written on the source after the reconcile."""
        return (_written(b"l", partition, number) for number in range(LIVE))


def _side_by_side(of: Callable[[int], Iterable[Pair]]) -> Iterator[Written]:
    """The records of all lanes in turns."""
    lanes = {partition: iter(of(partition)) for partition in range(PARTITIONS)}
    while lanes:
        for partition, each in list(lanes.items()):
            if (found := next(each, None)) is None:
                del lanes[partition]
            else:
                yield partition, *found, []


def _read(bootstrap: str, topic: str, partition: int, first: int, end: int) -> Iterator[tuple[int, int, Pair]]:
    """Offset, timestamp and content of every visible record of a partition from an offset on, in order."""
    consumer = reader(bootstrap, enable_partition_eof=True, fetch_message_max_bytes=8 << 20)
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        at, silent = first, time.monotonic() + SILENT_SECONDS
        while at < end:
            some = consumer.consume(10_000, timeout=0.2)
            if some:
                silent = time.monotonic() + SILENT_SECONDS
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
                yield offset, each.timestamp()[1], (key, value)
    finally:
        consumer.close()


@dataclass(slots=True, kw_only=True)
class Measurement:
    """One run of it all. What a client of Kafka's own finds wrong is noted, lane by lane."""

    history: History
    settings: FlowSettings
    spark: SparkContext
    folder: str
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    _marked: float = 0.0

    def run(self) -> None:
        """Do it all."""
        source, target, remote = self.settings.source.bootstrap, self.settings.target.bootstrap, self._remote
        history = self.history
        with self._phase("write"):
            produce(source, TOPIC, _side_by_side(history.replicated_records))
        with self._phase("backfill"):
            copied = self._copy("backfill-1")
        self._same("backfilled", sum(each.records for each in copied), history.records - history.new)
        before = stable_ends(source, TOPIC), stable_ends(target, remote)
        with self._phase("outage"):
            produce(source, TOPIC, _side_by_side(history.orphaned_records))
            produce(target, remote, _side_by_side(history.new_records))
        beside, cpu = {each.pid for each in family(os.getpid())}, time.process_time()
        spark = Meter(lambda: [each for each in family(os.getpid()) if each.pid not in beside], forked=True)
        with spark, self._phase("reconcile"):
            outcome = self._reconcile()
        cpu = time.process_time() - cpu + spark.cpu_seconds
        self.figures |= {"reconcile_cpu_seconds": round(cpu, 1), "executor_mb": round(spark.resident_mb)}
        if spark.resident_mb > EXECUTOR_MB:
            self.wrong.append(f"the executor may have {EXECUTOR_MB} MB")
        with self._phase("live"):
            produce(source, TOPIC, _side_by_side(history.live_records))
            again = self._copy("live-1")
        self._same("written live", sum(each.written for each in again), LIVE * PARTITIONS)
        with self._phase("audit"):
            self._found(outcome)
            for partition in range(PARTITIONS):
                self._lane(partition, before[0][partition], before[1][partition], outcome)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.figures[f"{name}_seconds"] = round(time.monotonic() - began, 1)
        print(f"{name:<12} {self.figures[f'{name}_seconds']:7.1f} s", flush=True)

    def _same(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.wrong.append(f"{what}: {str(found)[:300]}, expected {str(expected)[:300]}")

    @property
    def _remote(self) -> str:
        return self.settings.remote_topic(TOPIC)

    def _copy(self, run_id: str) -> list[CopyResult]:
        """Everything that the source has, by the jobs' engine."""
        ends = stable_ends(self.settings.source.bootstrap, TOPIC)
        tasks = [copy_task(self.settings, TOPIC, partition, end, run_id=run_id) for partition, end in ends.items()]
        return copy_all(self.spark, tasks)

    def _reconcile(self) -> JobOutcome:
        options = ReconcileOptions(policy="report")
        request = JobRequest(run_id="reconcile-1", flow=self.settings, topics=(TOPIC,), options=options)
        run = JobRun(request, open_job_files(f"{self.folder}/reconcile-1"), now_ms())
        run._context = self.spark
        self._marked = time.monotonic()
        return Reconciliation(run, on_step=self._step, settle_ms=0, still_seconds=1).act()

    def _step(self, step: str) -> None:
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
            **dict.fromkeys(("unmapped", "failed", "differing", "groups_not_ready"), 0),
        }
        self._same("totals", {name: totals[name] for name in expected}, expected)
        # The lanes were not held before, since no forwarder runs beside: the job says so.
        self._same("work that is left", [each for each in outcome.found["troubles"] if "hold" not in each], [])

    def _offsets(
        self, where: str, records: Iterator[tuple[int, int, Pair]], expected: Iterable[Pair]
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

    def _lane(self, partition: int, upstream: int, downstream: int, outcome: JobOutcome) -> None:
        """Audit one lane; both offsets are the ends of the logs before the outage."""
        history, where = self.history, f"{TOPIC}-{partition}"
        orphans, live = list(history.orphaned_records(partition)), list(history.live_records(partition))
        source, target = self.settings.source.bootstrap, self.settings.target.bootstrap
        arrived = _read(source, TOPIC, partition, upstream, stable_ends(source, TOPIC)[partition])
        back = chain(orphans, history.new_records(partition), live)
        here, made = self._offsets(f"{where} on the source", arrived, back)
        written = _read(target, self._remote, partition, downstream, stable_ends(target, self._remote)[partition])
        forth = chain(history.new_records(partition), live)
        there, made_there = self._offsets(f"{where} on the target", written, forth)
        if self.wrong:
            return
        self._same(f"{where}: timestamps", made[len(orphans) : -LIVE], made_there[:-LIVE])
        (found,) = [each for each in outcome.found["lanes"] if each["partition"] == partition]
        stretch = [(here[0], here[len(orphans) - 1] + 1)] if orphans else []
        noted = [(each["first"], each["next"], each["records"]) for each in found["orphans"]]
        self._same(f"{where}: orphans", noted, [(*each, len(orphans)) for each in stretch])
        keys = {key for key, _ in orphans[: history.share(partition, history.conflicts)]}
        self._same(f"{where}: keys", {each["key"].encode() for each in found["conflicting"]}, keys)
        client, lane = dynamodb_client("us-east-1", None), Lane(self.settings.name, TOPIC, partition)
        losses = DynamoDbLossLedger(client, self.settings.tables.loss_ledger).read(lane)
        ledger = [(each.first, each.next, each.cause) for each in losses]
        self._same(f"{where}: the ledger", ledger, [(*each, "orphaned") for each in stretch])
        offsets, wrong = LoadedChains(DynamoDbChains(client, self.settings.tables.offset_map), lane).offset_map(), 0
        for up, down in list(zip(here[len(orphans) :], there, strict=True))[::TRANSLATED]:
            one, other = offsets.downstream(lane, up), offsets.upstream(lane, down)
            wrong += (one.offset, one.state, other.offset, other.state) != (down, "exact", up, "exact")
        self._same(f"{where}: mistranslated", wrong, 0)


def many(*, records: int = 20_000_000) -> Outcome:
    """A reconcile of 20 million records, of which 2 million are new, with orphans and conflicts.

    A record in two thousand was never replicated; a tenth is written on the target, some with the keys of these. After
    the reconcile a client of Kafka's own audits what came back, its order, orphans, conflicts and translations, and
    live records show that nothing of it returns to the target. Spark is one JVM of 768 MB with two workers.
    """
    with grounded(aliases=ALIASES) as ground:
        os.environ["PYSPARK_SUBMIT_ARGS"] = DRIVER
        settings, forever = ground.settings(), {"retention_ms": "-1", "message_timestamp_before_max_ms": str(1 << 62)}
        ground.create({TOPIC: PARTITIONS}, **forever)
        ground.create_remote({settings.remote_topic(TOPIC): PARTITIONS}, **forever)
        spark = spark_context("reconcile")
        spark.setLogLevel("ERROR")
        found = Measurement(history=History(records), settings=settings, spark=spark, folder=str(ground.folder))
        found.run()
        spark.stop()
    counts = {name: getattr(found.history, name) for name in ("records", "new", "orphans", "conflicts")}
    return Outcome(counts | found.figures, found.wrong)


# Copying back over a distance


def distance(*, round_trip_ms: float = 80.0, records: int = 50_000, batch_kb: int = 16) -> Outcome:
    """Records a second of one lane and of twelve, copied back to a source 80 ms away.

    The job runs beside the target, as it does, and writes to the source through the lab's delaying proxy. Twelve lanes
    are copied in two slots of Spark, as on two cores.
    """
    figures = {}
    with grounded(aliases=ALIASES, linked=ALIASES[0]) as ground:
        settings, lanes = ground.settings(), PARTITIONS + 1
        remote = settings.remote_topic(TOPIC)
        ground.create({TOPIC: lanes})
        ground.create_remote({remote: lanes})
        some = shape(1_000, lanes, records * lanes, noise=True, batch=batch_kb * 1024)
        fill(ground.target.bootstrap, [remote], some)
        ends = stable_ends(ground.target.bootstrap, remote)
        spark = spark_context("copy back")
        spark.setLogLevel("ERROR")
        ground.source.link.round_trip_ms = round_trip_ms
        for partitions in (range(1), range(1, lanes)):
            began, tasks = time.monotonic(), []
            for partition in partitions:
                forward = Lane(settings.name, TOPIC, partition)
                lane = ReconciledLane(forward=forward, remote_topic=remote, generation=0)
                whole = OffsetRange(0, ends[partition])
                tasks += back_tasks(settings, lane, (), whole, run_id="reconcile-1", files="")
            results, seconds = copy_all(spark, tasks), time.monotonic() - began
            copied, passed = sum(each.records for each in results), sum(each.passed_bytes for each in results)
            figures[f"records_per_second_{len(partitions)}_lanes"] = round(copied / seconds)
            print(
                f"{len(partitions):>2} lanes: {copied:,} records in {seconds:.1f} s, "
                f"{passed / max(1, sum(each.bytes for each in results)):.0%} passed, "
                f"{sum(each.runs for each in results)} transactions",
                flush=True,
            )
        spark.stop()
    return Outcome(figures)


# The memory of decisions

HOLES, HOLE_RECORDS = 2_000, 200_000
LIMIT_MB = 100
"""Beyond what the process has at its start."""
LANE = Lane(FlowName(*ALIASES), TOPIC, 0)


def _runs(count: int) -> Iterator[Run]:
    """Runs of ten records, each with a marker behind it on both sides."""
    return (run(at, at + 11, (at, at, 10), lane=LANE, attempt=f"{at}") for at in range(0, count * 11, 11))


def memory(*, runs: int = 2_592_000) -> Outcome:
    """Memory and time of a reconcile's decisions on a lane with a month of history.

    A month of a lane with one run a second, as a back lane's and as the forward chain, one record in a thousand runs an
    orphan; and 2,000 holes beside 200,000 records. Runs are made as they are read, so what is measured is what the
    decisions hold.
    """
    head, every = Head(generation=0, position=0), HOLE_RECORDS // HOLES

    def join() -> int:
        copies = copies_above(_runs(runs), 0)
        links = joined(LANE, head, copies, mapped_from=0, until=runs * 11, request="reconcile-1", now=1)
        return sum(link.records for link in links)

    def orphans() -> int:
        records = (
            Record(offset=number * 11_000 + 10, timestamp=1, headers=[], value=b"v" * 100)
            for number in range(runs // 1_000)
        )
        return seen_in(apart(places_of(_runs(runs)), OffsetRange(0, runs * 11)), records).records

    def holes() -> int:
        ranges = [OffsetRange(number * every, number * every + every // 2) for number in range(HOLES)]
        records = (Record(offset=each, timestamp=1, headers=[], value=b"v" * 100) for each in range(HOLE_RECORDS))
        return seen_in(ranges, records).records

    before, wrong = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, []
    work: dict[str, tuple[Callable[[], int], int]] = {
        "claims": (lambda: claims_of(_runs(runs)).records, runs * 10),
        "orphans": (orphans, runs // 1_000),
        "join": (join, runs * 10),
        "holes": (holes, HOLE_RECORDS // 2),
    }
    for name, (do, expected) in work.items():
        began, found = time.process_time(), do()
        used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before
        print(f"{name:<8} {time.process_time() - began:6.1f} CPU-s, {used:4d} MB more, {found:,} found", flush=True)
        if found != expected or used > LIMIT_MB:
            wrong.append(f"{name}: {found} of {expected}, {used} MB more of {LIMIT_MB}")
    return Outcome({}, wrong)
