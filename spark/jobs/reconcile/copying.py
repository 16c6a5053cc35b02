"""Copies of several lanes in one task, side by side: the cluster that is written is far, and most of a copy is waiting.

A lane waits for the answers to its requests and for its transactions; the others of its task go on meanwhile. Each has
clients of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from mirrorless.jobs.copy_task import CopyResult, CopyTask
from spark.jobs.lane_copies import copied
from spark.jobs.lane_tasks import TaskAttempt, groups_of, run_lanes
from spark.jobs.session import lanes_at_a_time

TOGETHER: Final = 4
"""Lanes of one task, at most: each holds a chunk of its log, and a core has no more to do for them over 80 ms."""


def copy_all(spark: SparkSession, tasks: Sequence[CopyTask]) -> list[CopyResult]:
    """Do every copy; the results in the order of the tasks."""
    if not tasks:
        return []
    groups = groups_of(len(tasks), least=lanes_at_a_time(spark), most=TOGETHER)
    texts = [msgspec.json.encode([tasks[number] for number in group]) for group in groups]
    found: dict[int, CopyResult] = {}
    for group, text in zip(groups, run_lanes(spark, copy_together, texts), strict=True):
        found.update(zip(group, msgspec.json.decode(text, type=list[CopyResult]), strict=True))
    return [found[number] for number in range(len(tasks))]


def copy_together(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do some `CopyTask`s at the same time: from their JSON to that of a `CopyResult` for each.

    Raises:
        Retriable: Spark tries again, and what was copied is not copied again; at the last attempt the result of that
            lane is `failed` instead.
    """
    tasks = msgspec.json.decode(task, type=list[CopyTask])
    with ThreadPoolExecutor(len(tasks)) as pool:
        work = [pool.submit(partial(copied, each, attempt, slot=slot)) for slot, each in enumerate(tasks)]
    return msgspec.json.encode([each.result() for each in work])
