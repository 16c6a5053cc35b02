"""Spark tasks of lanes: one task for each lane, or for some small ones, and the result of a lane's failure.

A lane's work is given as bytes and returns its result as bytes: both small, because records never pass through Spark. A
lane that fails is tried again like any task; one that shared its task gets one of its own then. At its last attempt it
returns its failure instead of raising it, whatever it is: otherwise Spark would end all other lanes with it.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar
from zipimport import zipimporter

from pyspark import SparkContext, TaskContext

from mirrorless.errors import LeaseHeld, MirrorlessError
from spark.jobs.context import lanes_at_a_time, most_attempts

LANES_OF_A_TASK: Final = 64
"""At most: Spark takes 5 to 10 ms of the driver's CPU for a task, which is 8 minutes for 50,000."""

TASKS_OF_A_SLOT: Final = 16
"""At least, where lanes share tasks: none is idle for long while others finish."""

BYTES_OF_A_TASK: Final = 64_000_000
"""Of lanes that share one: a second or two."""

BYTES_OF_A_LANE: Final = 1_000_000
"""For which a lane without records counts: its requests take as long."""

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
        task = TaskContext.get()
        number = task.attemptNumber() if task else 0
        return cls(number, number >= most - 1)


T = TypeVar("T")

Work = Callable[[bytes, TaskAttempt], bytes]
"""A function of a module: workers import it by its name."""


def run_lanes(
    context: SparkContext, work: Work, tasks: Sequence[bytes], *, sizes: Sequence[int] | None = None
) -> list[bytes]:
    """Do every piece of work, as many at a time as there are cores, and return the results in their order.

    Args:
        context: of Spark.
        work: of each lane.
        tasks: its pieces; begun in this order.
        sizes: the bytes of each, where they are known: only small ones share a task.

    Raises:
        Exception: of Spark, when a worker died at a task's last attempt.
    """
    slots = lanes_at_a_time(context)
    each = [size + BYTES_OF_A_LANE for size in sizes or [0] * len(tasks)]
    groups = gathered(enumerate(each), most=min(BYTES_OF_A_TASK, sum(each) // (TASKS_OF_A_SLOT * slots)))
    found = _done(context, work, tasks, groups)
    found |= _done(context, work, tasks, [[number] for group in groups for number in group if number not in found])
    return [found[number] for number in range(len(tasks))]


def gathered(lanes: Iterable[tuple[int, int]], *, most: int) -> list[list[int]]:
    """Small lanes gathered into tasks, in their order.

    Args:
        lanes: the number of each, and its bytes.
        most: bytes of a task, but of one lane alone.
    """
    groups: list[list[int]] = []
    size = 0
    for number, bytes_ in lanes:
        if not groups or size + bytes_ > most or len(groups[-1]) >= LANES_OF_A_TASK:
            groups.append([])
            size = 0
        groups[-1].append(number)
        size += bytes_
    return groups


def _done(
    context: SparkContext, work: Work, tasks: Sequence[bytes], groups: Sequence[Sequence[int]]
) -> dict[int, bytes]:
    """The results by the numbers of the pieces, without those that failed in a task of several."""
    if not groups:
        return {}
    most = most_attempts(context)

    def do(pieces: list[bytes]) -> list[bytes | None]:
        make_worker_light()
        attempt = TaskAttempt.of(most)
        return [work(pieces[0], attempt)] if len(pieces) == 1 else [_or_none(work, each, attempt) for each in pieces]

    # One partition for each group makes it a task of its own. Nothing of SQL is needed.
    given = [[tasks[number] for number in group] for group in groups]
    answers = context.parallelize(given, len(given)).map(do).collect()
    return {
        number: answer
        for group, some in zip(groups, answers, strict=True)
        for number, answer in zip(group, some, strict=True)
        if answer is not None
    }


def _or_none(work: Work, piece: bytes, attempt: TaskAttempt) -> bytes | None:
    """The result of a lane, or None where another attempt may succeed: the others of its task are not done again."""
    try:
        return work(piece, attempt)
    except Exception:  # noqa: BLE001 -- the next attempt raises it, or has it for its result
        traceback.print_exc()
        return None


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


def limit_garbage_collection() -> None:
    """Turn the garbage collector off: records hold no cycles, and it would walk thousands of them again and again."""
    if gc.isenabled():
        gc.freeze()
        gc.disable()
    elif gc.get_count()[0] > LEFT_OVER_OBJECTS:
        gc.collect()
