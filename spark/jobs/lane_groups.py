"""Copies of several lanes in one task, side by side, as whole batches in transactions that they share.

A lane waits for the answers to its requests and for its transactions; the others of its task go on meanwhile. Each has
a thread and clients of its own, and what it reads by whole batches is written by one producer for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import msgspec
from pyspark import SparkContext

from mirrorless.jobs.copy_task import CopyResult, CopyTask
from mirrorless.jobs.lane_copy import Ending
from spark.jobs.context import lanes_at_a_time
from spark.jobs.lane_copies import Beside, by_batches, copied, shared_transactions
from spark.jobs.lane_tasks import TaskAttempt, Work, run_lanes, share_one_heap

TOGETHER: Final = 6
"""Lanes of one task, at most: each holds a chunk of its log, and more would save little of a request."""

MOST_ATTEMPTS: Final = 4
"""Of a lane in its task, as many as Spark's of a task by default."""

EndingOf = Callable[[CopyTask], Ending | None]


def copy_all(
    context: SparkContext, tasks: Sequence[CopyTask], *, work: Work | None = None, sizes: Sequence[int] | None = None
) -> list[CopyResult]:
    """Do every copy; the results in the order of the tasks.

    Args:
        context: of Spark.
        tasks: those to be begun first come first.
        work: of a group of them, `copy_together` by default.
        sizes: the bytes of each, where they are known.
    """
    groups = dealt_out(len(tasks), lanes_at_a_time(context), together(tasks))
    texts = [msgspec.json.encode([tasks[number] for number in group]) for group in groups]
    sums = None if sizes is None else [sum(sizes[number] for number in group) for group in groups]
    found: dict[int, CopyResult] = {}
    for group, text in zip(groups, run_lanes(context, work or copy_together, texts, sizes=sums), strict=True):
        found.update(zip(group, msgspec.json.decode(text, type=list[CopyResult]), strict=True))
    return [found[number] for number in range(len(tasks))]


def together(tasks: Sequence[CopyTask]) -> int:
    """Lanes that one task copies at the same time, at most."""
    return TOGETHER if all(map(by_batches, tasks)) else 1


def dealt_out(lanes: int, slots: int, most: int = TOGETHER) -> list[range]:
    """The numbers of so many lanes, dealt out to groups: the first ones first, and no slot without a lane."""
    size = slots * most
    blocks = (range(first, min(lanes, first + size)) for first in range(0, lanes, size))
    return [block[number :: min(len(block), slots)] for block in blocks for number in range(min(len(block), slots))]


def copy_together(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do some `CopyTask`s at the same time: from their JSON to that of a `CopyResult` for each."""
    return copy_group(task, attempt, lambda _: None)


def copy_group(task: bytes, attempt: TaskAttempt, ending: EndingOf) -> bytes:
    """The same, each lane with its ending. A lane that fails is tried again here, while the others go on."""
    tasks, began = msgspec.json.decode(task, type=list[CopyTask]), time.process_time()
    shared = shared_transactions(tasks)
    if len(tasks) > 1:
        share_one_heap()

    def copy(slot: int) -> CopyResult:
        task, beside = tasks[slot], Beside(slot, len(tasks), shared[slot])
        for number in range(attempt.number, MOST_ATTEMPTS - 1):
            with suppress(Exception):  # the lane's progress has it, and the last attempt has it for its result
                return copied(task, TaskAttempt(number, last=False), ending=ending(task), beside=beside)
        return copied(task, TaskAttempt(MOST_ATTEMPTS - 1, last=True), ending=ending(task), beside=beside)

    with ThreadPoolExecutor(len(tasks)) as pool:
        results = list(pool.map(copy, range(len(tasks))))
    each = (time.process_time() - began) / len(tasks)  # threads of a process have one account
    return msgspec.json.encode([msgspec.structs.replace(result, cpu_seconds=each) for result in results])
