"""The copy of one lane in its task: the replicator, the stores and the clients, wired.

Copies of several lanes in one task, side by side, as whole batches in transactions that they share.

A lane waits for the answers to its requests and for its transactions; the others of its task go on meanwhile. Each has
a thread and clients of its own, and what it reads by whole batches is written by one producer for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pyspark import SparkContext

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.adapters.replicator import flow_rules, wired_replicator
from mirrorless.clock import Deadline, deadline_in, now_ms
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.batch_copy import BatchCopy, EngineChoice
from mirrorless.jobs.copy_task import CopyResult, CopyTask, LaneLog
from mirrorless.jobs.lane_copy import Ending, LaneCopy
from mirrorless.jobs.lane_start import CHUNK_SECONDS
from mirrorless.jobs.shared_transactions import SharedTransactions
from mirrorless.ports.kafka import Source, SourceTopic
from mirrorless.protocol.replicate import Replicator
from mirrorless.records.origin import OriginRule
from mirrorless.records.record_batch import PassTerms
from spark.jobs.clients import (
    warm_archive,
    warm_batch_log,
    warm_batch_target,
    warm_epochs,
    warm_limit,
    warm_log,
    warm_tables,
    warm_target,
)
from spark.jobs.context import lanes_at_a_time
from spark.jobs.lane_tasks import TaskAttempt, Work, limit_garbage_collection, result_of, run_lanes, share_one_heap

COPIED_BYTES: Final = 32_000_000
"""Of whole batches in one chunk of each lane of a task together: they are held as they came, and a transaction has its
own cost."""

SHARED_SLOT: Final = -1
"""Of the writer of shared transactions."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The place of a copy among those that its task does at the same time."""

    slot: int = 0
    """Of its clients: each has some of its own."""
    lanes: int = 1
    """Copied at the same time."""
    shared: SharedTransactions | None = None
    """Their transactions."""


ALONE: Final = Beside()


def copied(task: CopyTask, attempt: TaskAttempt, *, ending: Ending | None = None, beside: Beside = ALONE) -> CopyResult:
    """Wire a copy and run it; see `result_of`."""
    return result_of(
        lambda: finished(wire_copy(task, attempt, ending=ending, beside=beside), attempt),
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


def wire_copy(
    task: CopyTask, attempt: TaskAttempt, *, ending: Ending | None = None, beside: Beside = ALONE
) -> LaneCopy:
    """A task with its replicators, stores and clients."""
    settings, states, slot = _exactly_once(task), _states(task), beside.slot
    batch_copy: BatchCopy | None = None
    if by_batches(task):
        target = warm_batch_target(msgspec.json.encode(settings), slot)
        batch_copy = BatchCopy(
            replicator=_replicator([task], target, target.terms),
            log=warm_batch_log(msgspec.json.encode(settings.source), settings.flow, COPIED_BYTES // beside.lanes, slot),
            terms=lambda: target.terms(task.write_topic),
            choice=EngineChoice(lanes=beside.lanes if beside.shared is not None else 1),
        )
    return LaneCopy(
        task=task,
        replicator=_replicator([task], warm_target(msgspec.json.encode(settings), slot), lambda _: None),
        log=lane_log(task, slot),
        epochs=warm_epochs(msgspec.json.encode(settings.source), settings.flow, slot) if task.archive is None else None,
        by_batches=batch_copy,
        shared=beside.shared,
        leases=states if task.holder else None,
        files=open_job_files(task.files) if task.files else None,
        ending=ending,
        limit=warm_limit(task.run_id, task.max_bytes_per_second) if task.max_bytes_per_second else None,
        attempt=attempt.number,
        clock=now_ms,
    )


def shared_transactions(tasks: Sequence[CopyTask]) -> list[SharedTransactions | None]:
    """The transactions of each of some copies at the same time; None where it shares them with no other.

    Only copies of one flow and direction share: a job may write to both clusters at the same time.
    """
    alike: dict[tuple[object, ...], list[CopyTask]] = {}
    for task in tasks:
        if by_batches(task):
            alike.setdefault(_shared_by(task), []).append(task)
    made = {key: _shared(some) for key, some in alike.items()}
    return [made[_shared_by(task)] if by_batches(task) else None for task in tasks]


def _shared_by(task: CopyTask) -> tuple[object, ...]:
    return msgspec.json.encode(task.settings), task.tables_region, task.holder, task.run_id


def _shared(tasks: Sequence[CopyTask]) -> SharedTransactions | None:
    """None where two of them write to one partition: the acknowledgements of a transaction are by partition."""
    places = {(task.write_topic, task.partition) for task in tasks}
    if len(places) < max(2, len(tasks)):
        return None
    target = warm_batch_target(msgspec.json.encode(_exactly_once(tasks[0])), SHARED_SLOT)
    return SharedTransactions(
        replicator=_replicator(tasks, target, target.terms),
        request=tasks[0].run_id,
        deadline=lambda: deadline_in(CHUNK_SECONDS),
    )


def by_batches(task: CopyTask) -> bool:
    """Whether a lane's batches may be copied as they are: one that passes gets no origin, and no rule changes it."""
    as_they_are = _origin(task) is None and task.settings.rule_of(task.read_topic) is None
    return task.archive is None and task.settings.copying == "auto" and as_they_are


def _replicator(tasks: Sequence[CopyTask], target: KafkaTarget, terms: Callable[[str], PassTerms | None]) -> Replicator:
    """The replicator of some lanes of a job, by one writer."""
    first, of = tasks[0], {task.lane_topic: task for task in tasks}
    settings = _exactly_once(first)
    return wired_replicator(
        settings,
        _tables(first),
        target,
        remote_topic=lambda topic: of[topic].write_topic,
        source=_Described(KafkaSource(settings), {topic: task.read_topic for topic, task in of.items()}),
        holder=first.holder,
        examined=True,
        terms=terms,
        origin=lambda topic: _origin(of[topic]),
        rules=flow_rules(settings, _tables(first), lambda topic: of[topic].read_topic),
    )


def _exactly_once(task: CopyTask) -> FlowSettings:
    return msgspec.structs.replace(task.settings, delivery="exactly_once")


def _tables(task: CopyTask) -> Any:
    return warm_tables(task.tables_region or task.settings.target.region, task.settings.tables_role)


def _states(task: CopyTask) -> DynamoDbLaneStates:
    return DynamoDbLaneStates(_tables(task), task.settings.tables.lanes)


def _origin(task: CopyTask) -> OriginRule | None:
    """Of the lane. Into another topic nothing returns, and a copy there needs none."""
    return task.settings.origin_rule(task.read_topic) if task.write_topic == task.read_topic else None


class _Described:
    """Implements `mirrorless.ports.kafka.Source`: the lane of a job may have a name that no topic has."""

    def __init__(self, source: Source, topics: Mapping[str, str]) -> None:
        self._source, self._topics = source, topics

    def describe(self, topic: str, deadline: Deadline) -> SourceTopic:
        """See `Source.describe`."""
        return self._source.describe(self._topics[topic], deadline)


def lane_log(task: CopyTask, slot: int = 0) -> LaneLog:
    """The log that a task reads."""
    if task.archive is not None:
        return warm_archive(task.archive)
    return warm_log(msgspec.json.encode(task.settings.source), task.settings.flow, slot)


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
