"""Spark tasks of lanes: one task for each lane, and the result of its failure.

A task gets one piece of work as bytes and returns one result as bytes: both small, because records never pass through
Spark. A lane that fails is tried again like any task. At its last attempt it returns its failure instead of raising it,
whatever it is: otherwise Spark would end all other lanes with it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar
from zipimport import zipimporter

from pyspark import TaskContext
from pyspark.sql import SparkSession

from mirrorless.errors import LeaseHeld, MirrorlessError
from spark.jobs.session import most_attempts

_ARENA_MAX = -8
"""The number of `M_ARENA_MAX` in glibc's `malloc.h`."""

LEFT_OVER_OBJECTS = 10_000
"""Container objects that outlived their chunks before the garbage collector runs."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """The attempt of a task."""

    number: int
    """From 0."""
    last: bool
    """Whether Spark would end the whole job if this one failed."""

    @classmethod
    def of(cls, most: int) -> TaskAttempt:
        """The attempt of the task that is running, of so many at most."""
        context = TaskContext.get()
        number = context.attemptNumber() if context else 0
        return cls(number, number >= most - 1)


T = TypeVar("T")

Work = Callable[[bytes, TaskAttempt], bytes]
"""A function of a module: workers import it by its name."""


def run_lanes(spark: SparkSession, work: Work, tasks: Sequence[bytes]) -> list[bytes]:
    """Do every piece of work, as many at a time as there are cores, and return the results in their order.

    Raises:
        Exception: of Spark, when a worker died at a task's last attempt.
    """
    if not tasks:
        return []
    most = most_attempts(spark)

    def do(task: bytes) -> bytes:
        make_worker_light()
        return work(task, TaskAttempt.of(most))

    # One partition for each piece makes it a task of its own, which gets this piece alone. Nothing of SQL is needed.
    return spark.sparkContext.parallelize(tasks, len(tasks)).map(do).collect()


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


def make_worker_light() -> None:
    """Spare a worker what Spark has it do at every task, which takes 0.13 s of CPU and more than a small lane.

    Before a task, the importer of each zip file on the path reads its whole directory anew, that of `pyspark.zip` above
    all: https://docs.python.org/3/library/importlib.html#importlib.invalidate_caches. The next import makes it again
    where it is needed. After a task, a full garbage collection walks every object of every module.
    """
    for place, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[place]
    _freeze_once()


@cache
def _freeze_once() -> None:
    """Leave what is there now out of every collection to come."""
    gc.freeze()


def share_one_heap() -> None:
    """Let all threads of this process allocate from one heap: each of several would keep what its thread has freed.

    Six lanes took 580 MB, and take 280 (https://man7.org/linux/man-pages/man3/mallopt.3.html, `M_ARENA_MAX`).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc's
        mallopt(_ARENA_MAX, 1)


def limit_garbage_collection() -> None:
    """Turn the garbage collector off: records hold no cycles, and it would walk thousands of them again and again."""
    if gc.isenabled():
        gc.freeze()
        gc.disable()
    elif gc.get_count()[0] > LEFT_OVER_OBJECTS:
        gc.collect()
