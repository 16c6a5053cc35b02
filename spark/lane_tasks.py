"""Spark tasks of lanes: one task for each lane, and the replicator that copies the lane in it.

A task gets one piece of work as bytes and returns one result as bytes: both small, because records never pass through
Spark. A lane that fails is tried again like any task. At its last attempt it returns its failure instead of raising it,
whatever it is: otherwise Spark would end all other lanes with it.

Spark uses its Python processes again, task after task: clients of the same clusters stay connected in between.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import msgspec
from pyspark import TaskContext
from pyspark.sql import SparkSession

from mirrorless.adapters.archive.lane_log import ParquetArchive, open_archive
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.batch_lane_log import CHUNK_BYTES, KafkaBatchLaneLog
from mirrorless.adapters.kafka.batch_target import KafkaBatchTarget
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.clock import now_ms
from mirrorless.errors import LeaseHeld, MirrorlessError
from mirrorless.jobs.batch_copy import BatchCopy
from mirrorless.jobs.copy_task import CopyResult, CopyTask, LaneLog
from mirrorless.jobs.lane_copy import Ending, LaneCopy
from mirrorless.naming import SPARK_MASTER_VARIABLE
from mirrorless.origin import OriginRule
from mirrorless.ports.kafka import Deadline, Source, SourceTopic
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from mirrorless.record_batch import PassTerms
from mirrorless.settings import ClusterSettings, FlowSettings

if TYPE_CHECKING:
    import pyarrow as pa

_LOCAL: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.artifact.isolation.enabled": "false",
}

_MOST_EXECUTORS: Final = "spark.dynamicAllocation.maxExecutors"
"""Executors are allocated dynamically: their number at the beginning of a job is no measure."""

COPIED_BYTES: Final = 32_000_000
"""Of whole batches in one chunk of a copy: they are held as they came, and a transaction has its own cost."""

LEFT_OVER_OBJECTS = 10_000
"""Container objects that outlived their chunks before the garbage collector runs."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """The attempt of a task."""

    number: int
    """From 0."""
    last: bool
    """Whether Spark would end the whole job if this one failed."""


T = TypeVar("T")

Work = Callable[[bytes, TaskAttempt], bytes]
"""A function of a module: workers import it by its name."""


def spark_session(name: str) -> SparkSession:
    """The session of this process: EMR's, or a local one where `MIRRORLESS_SPARK_MASTER` is set."""
    builder = SparkSession.builder.appName(name)
    if master := os.environ.get(SPARK_MASTER_VARIABLE):
        builder = builder.master(master)
        for key, value in _LOCAL.items():
            builder = builder.config(key, value)
    return builder.getOrCreate()


def run_lanes(spark: SparkSession, work: Work, tasks: Sequence[bytes]) -> list[bytes]:
    """Do every piece of work, as many at a time as there are cores, and return the results in their order.

    Raises:
        Exception: of Spark, when a worker died at a task's last attempt.
    """
    if not tasks:
        return []
    count, pieces = len(tasks), list(tasks)
    most = _most_attempts(spark)

    def do(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 -- in the worker

        context = TaskContext.get()
        number = context.attemptNumber() if context else 0
        for batch in batches:
            for index in batch.column(0).to_pylist():
                result = work(pieces[index], TaskAttempt(number, number >= most - 1))
                yield pa.RecordBatch.from_pydict(
                    {"index": pa.array([index], pa.int64()), "result": pa.array([result], pa.binary())}
                )

    # One partition for each piece makes it a task of its own.
    frame = spark.range(0, count, 1, count).mapInArrow(do, "index long, result binary")
    results = {row["index"]: bytes(row["result"]) for row in frame.collect()}
    return [results[index] for index in range(count)]


def lanes_at_a_time(spark: SparkSession) -> int:
    """The most lanes that may run at once: all cores of all executors that there may be."""
    context = spark.sparkContext
    executors, cores = (context.getConf().get(key) for key in (_MOST_EXECUTORS, "spark.executor.cores"))
    if (context.master or "").startswith("local") or not (executors and cores):
        return int(context.defaultParallelism)
    return int(executors) * int(cores)


def _most_attempts(spark: SparkSession) -> int:
    """The most attempts of a task: in local mode by the master's second number, 1 by default."""
    master = spark.sparkContext.master or ""
    if master.startswith("local["):
        _, _, failures = master.removeprefix("local[").removesuffix("]").partition(",")
        return int(failures or 1)
    return int(spark.conf.get("spark.task.maxFailures", "4") or 4)


def copy_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `CopyTask`, from its JSON to that of its `CopyResult`: the work that `run_lanes` sends.

    Raises:
        Retriable: Spark tries again; at the last attempt the result is `failed` instead.
    """
    return msgspec.json.encode(copied(msgspec.json.decode(task, type=CopyTask), attempt))


def copied(task: CopyTask, attempt: TaskAttempt, *, ending: Callable[[CopyTask], Ending] | None = None) -> CopyResult:
    """Wire a copy and run it; see `result_of`."""
    return result_of(
        lambda: finished(wire_copy(task, attempt, ending=ending), attempt),
        attempt,
        failed=lambda error: CopyResult(lane=str(task.lane), partition=task.partition, state="failed", error=error),
    )


def finished(copy: LaneCopy, attempt: TaskAttempt) -> CopyResult:
    """Run a wired copy; see `result_of`."""
    limit_garbage_collection()
    return result_of(
        copy.run,
        attempt,
        failed=lambda error: copy.result("failed", error=error),
        again=lambda error: copy.note("running", f"tried again by Spark: {error}", force=True),
    )


def result_of(
    work: Callable[[], T],
    attempt: TaskAttempt,
    *,
    failed: Callable[[str], T],
    again: Callable[[str], None] = lambda _: None,
) -> T:
    """The result of a lane's work; a failure is its result where no attempt would help, or none is left.

    Args:
        work: of the lane.
        attempt: of its task.
        failed: makes the result of a failure, given in words.
        again: called before the failure is left to Spark.
    """
    try:
        return work()
    except MirrorlessError as exc:
        # Another attempt would take a lane again that an operator has released.
        if exc.retriable and not attempt.last and not isinstance(exc, LeaseHeld):
            again(str(exc))
            raise
        return failed(str(exc))
    except Exception as exc:
        if not attempt.last:
            again(repr(exc))
            raise
        traceback.print_exc()
        return failed(f"{exc!r}, of no kind that is expected: the worker's log has where it came from; report it")


def wire_copy(task: CopyTask, attempt: TaskAttempt, *, ending: Callable[[CopyTask], Ending] | None = None) -> LaneCopy:
    """A task with its replicators, stores and clients."""
    settings = msgspec.structs.replace(task.settings, delivery="exactly_once")
    dynamodb = warm_tables(task.tables_region or settings.target.region, settings.tables_role)
    tables = settings.tables
    chains = DynamoDbChains(dynamodb, tables.offset_map, retention_days=settings.map_retention_days)
    states = DynamoDbLaneStates(dynamodb, tables.lanes)
    source = _Described(KafkaSource(settings), task.read_topic)
    ledger = DynamoDbLossLedger(dynamodb, tables.loss_ledger)
    # Into another topic nothing returns, and a copy there needs no origin. A batch that passes cannot be marked.
    origin = settings.origin_rule if task.write_topic == task.read_topic else _no_origin

    def replicator(target: KafkaTarget, terms: Callable[[str], PassTerms | None]) -> Replicator:
        return Replicator(
            flow=settings.name,
            delivery="exactly_once",
            remote_topic=lambda _: task.write_topic,
            chains=chains,
            positions=Positions(chains=chains, states=states, target=target, clock=now_ms),
            ledger=ledger,
            target=target,
            source=source,
            clock=now_ms,
            new_id=lambda: uuid4().hex,
            holder=task.holder,
            examined=True,
            terms=terms,
            origin=origin,
        )

    by_batches: BatchCopy | None = None
    if task.archive is None and settings.copy == "auto" and origin(task.read_topic) is None:
        target = warm_batch_target(msgspec.json.encode(settings))
        by_batches = BatchCopy(
            replicator=replicator(target, target.terms),
            log=warm_batch_log(msgspec.json.encode(settings.source), settings.flow, COPIED_BYTES),
            terms=lambda: target.terms(task.write_topic),
        )
    return LaneCopy(
        task=task,
        replicator=replicator(warm_target(msgspec.json.encode(settings)), lambda _: None),
        log=lane_log(task),
        by_batches=by_batches,
        leases=states if task.holder else None,
        files=open_job_files(task.files) if task.files else None,
        ending=ending(task) if ending is not None else None,
        attempt=attempt.number,
        clock=now_ms,
    )


def _no_origin(_: str) -> OriginRule | None:
    return None


def lane_log(task: CopyTask) -> LaneLog:
    """The log that a task reads."""
    if task.archive is not None:
        return warm_archive(task.archive)
    return warm_log(msgspec.json.encode(task.settings.source), task.settings.flow)


@cache
def warm_tables(region: str | None, role: str | None) -> Any:
    """The process's client of the tables: to make one takes as much CPU as to copy some thousand records."""
    return dynamodb_client(region, role, direct=True)


@cache
def warm_log(cluster: bytes, flow: str) -> KafkaLaneLog:
    """The process's consumer of a cluster, given as JSON."""
    return KafkaLaneLog(msgspec.json.decode(cluster, type=ClusterSettings), flow=flow)


@cache
def warm_batch_log(cluster: bytes, flow: str, chunk_bytes: int = CHUNK_BYTES) -> KafkaBatchLaneLog:
    """The process's reader of a cluster by whole batches, given as JSON; it connects once there is one to read."""
    settings = msgspec.json.decode(cluster, type=ClusterSettings)
    return KafkaBatchLaneLog(settings, flow=flow, chunk_bytes=chunk_bytes)


@cache
def warm_archive(place: str) -> ParquetArchive:
    """The process's view of an archive: footers are read once, not once for each lane."""
    return open_archive(place)


@cache
def warm_target(settings: bytes) -> KafkaTarget:
    """The process's writer for a flow, given as JSON: its transactional id is its own."""
    return KafkaTarget(msgspec.json.decode(settings, type=FlowSettings), environment=uuid4().hex)


@cache
def warm_batch_target(settings: bytes) -> KafkaBatchTarget:
    """The process's writer of whole batches for a flow, given as JSON; its id is not that of the writer of records."""
    return KafkaBatchTarget(msgspec.json.decode(settings, type=FlowSettings), environment=uuid4().hex)


class _Described:
    """Implements `mirrorless.ports.kafka.Source`: the lane of a job may have a name that no topic has."""

    def __init__(self, source: Source, topic: str) -> None:
        self._source, self._topic = source, topic

    def describe(self, topic: str, deadline: Deadline) -> SourceTopic:  # noqa: ARG002 -- the lane's name, not a topic's
        """See `Source.describe`."""
        return self._source.describe(self._topic, deadline)


def limit_garbage_collection() -> None:
    """Turn the garbage collector off: records hold no cycles, and it would walk thousands of them again and again."""
    if gc.isenabled():
        gc.freeze()
        gc.disable()
    elif gc.get_count()[0] > LEFT_OVER_OBJECTS:
        gc.collect()
