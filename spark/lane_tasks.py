"""How does Spark run lanes? One task each; it plans, schedules and retries, and the task itself speaks to Kafka.

A task gets one piece of work as bytes and gives one result as bytes: both small, for records never pass through Spark.
A lane that fails is tried again like any task. At its last attempt it answers with its failure instead of raising it:
otherwise Spark would give up all other lanes with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa

MASTER: Final = "MIRRORLESS_SPARK_MASTER"
"""Where the driver finds its master on an operator's machine: `local[2,4]`. EMR Serverless sets its own."""

_LOCAL: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.artifact.isolation.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """Which try of a task this is."""

    number: int
    """From 0."""
    last: bool
    """Whether Spark would give up the whole job if this one failed."""


_MOST_EXECUTORS: Final = "spark.dynamicAllocation.maxExecutors"
"""Executors come and go: how many there are when a job begins says nothing."""

Work = Callable[[bytes, TaskAttempt], bytes]
"""A function of a module: it is sent to workers by its name."""


def spark_session(name: str) -> SparkSession:
    """The session of this process: EMR's, or a local one where `MIRRORLESS_SPARK_MASTER` says so."""
    builder = SparkSession.builder.appName(name)
    if master := os.environ.get(MASTER):
        builder = builder.master(master)
        for key, value in _LOCAL.items():
            builder = builder.config(key, value)
    return builder.getOrCreate()


def run_lanes(spark: SparkSession, work: Work, tasks: Sequence[bytes]) -> list[bytes]:
    """Do every piece of work, as many at a time as there are cores, and return the results in their order.

    Raises:
        Exception: Spark's, when a worker died at a task's last attempt.
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

    # One partition for each piece: that is what makes it a task of its own.
    frame = spark.range(0, count, 1, count).mapInArrow(do, "index long, result binary")
    results = {row["index"]: bytes(row["result"]) for row in frame.collect()}
    return [results[index] for index in range(count)]


def lanes_at_a_time(spark: SparkSession) -> int:
    """How many lanes may run at once, at most: all cores of all executors that there may ever be."""
    context = spark.sparkContext
    executors, cores = (context.getConf().get(key) for key in (_MOST_EXECUTORS, "spark.executor.cores"))
    if (context.master or "").startswith("local") or not (executors and cores):
        return int(context.defaultParallelism)
    return int(executors) * int(cores)


def _most_attempts(spark: SparkSession) -> int:
    """How often Spark tries a task: in local mode the master says so, and says 1 where it says nothing."""
    master = spark.sparkContext.master or ""
    if master.startswith("local["):
        _, _, failures = master.removeprefix("local[").removesuffix("]").partition(",")
        return int(failures or 1)
    return int(spark.conf.get("spark.task.maxFailures", "4") or 4)
