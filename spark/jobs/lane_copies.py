"""The copies of some lanes in one task: replicators, stores and clients, wired, and the tasks dealt out to Spark.

A lane waits for the answers to its requests and for its transactions; the others of its task share them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

import msgspec
from pyspark import SparkContext

from mirrorless.adapters.archive import ArchiveLog
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.kafka.batch_target import KafkaBatchTarget
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.replicator import flow_rules, wired_replicator
from mirrorless.clock import Deadline, now_ms
from mirrorless.copy.choice import EngineChoice
from mirrorless.copy.job import JobCopy, task_bytes
from mirrorless.copy.lane import Ending, LaneCopy
from mirrorless.jobs.copy_task import CopyResult, CopyTask, LaneLog
from mirrorless.ports.kafka import Source, SourceTopic, TopicPartition
from mirrorless.ports.log import NOTHING_MORE, Arrivals, Log
from mirrorless.protocol.copy_choice import Engine
from mirrorless.protocol.replicate import Replicator
from mirrorless.records.origin import OriginRule
from spark.jobs.clients import (
    warm_archive,
    warm_copied_log,
    warm_epochs,
    warm_limit,
    warm_log,
    warm_tables,
    warm_target,
)
from spark.jobs.context import lanes_at_a_time
from spark.jobs.lane_tasks import TaskAttempt, Work, limit_garbage_collection, result_of, run_lanes

EndingOf = Callable[[CopyTask], Ending | None]


def wire_copy(tasks: Sequence[CopyTask], attempt: TaskAttempt, ending: EndingOf = lambda _: None) -> JobCopy:
    """Tasks of one flow and direction, see `apart`, with their replicators, stores and clients."""
    first = tasks[0]
    places = {(task.lane_topic, task.partition): (task.read_topic, task.partition) for task in tasks}
    source, auto = msgspec.json.encode(first.settings.source), by_batches(first)

    @cache
    def clients(engine: Engine) -> tuple[Replicator, Log]:
        replicator = _replicator(tasks, engine)
        replicator.size = task_bytes(engine, len(tasks))
        if first.archive is not None:
            return replicator, NamedLog(ArchiveLog(warm_archive(first.archive)), places)
        alone = engine == "batches" and len(tasks) == 1
        return replicator, NamedLog(warm_copied_log(source, first.settings.flow, engine, alone=alone), places)

    engine: Engine = "batches" if auto else "records"
    replicator, log = clients(engine)
    states = DynamoDbLaneStates(_tables(first), first.settings.tables.lanes)
    beside: LaneLog = warm_log(source, first.settings.flow)
    if first.archive is not None:
        beside = warm_archive(first.archive)
    epochs = warm_epochs(source, first.settings.flow) if first.archive is None else None
    lanes = {
        (task.lane_topic, task.partition): LaneCopy(
            task=task,
            replicator=replicator,
            log=beside,
            epochs=epochs,
            leases=states if task.holder else None,
            files=open_job_files(task.files) if task.files else None,
            ending=ending(task),
            attempt=attempt.number,
            clock=now_ms,
        )
        for task in tasks
    }
    return JobCopy(
        replicator=replicator,
        log=log,
        lanes=lanes,
        clients=clients,
        choice=EngineChoice() if auto else None,
        engine=engine,
        limit=warm_limit(first.run_id, first.max_bytes_per_second) if first.max_bytes_per_second else None,
        request=first.run_id,
        clock=now_ms,
    )


def apart(tasks: Sequence[CopyTask]) -> list[list[int]]:
    """The numbers of tasks that may share transactions.

    Those are of one flow and direction: a job may write to both clusters at the same time. And no two of them read or
    write one partition: what comes, and what is acknowledged, is by partition.
    """
    found: list[tuple[set[object], list[int]]] = []
    for number, task in enumerate(tasks):
        alike = msgspec.json.encode([task.settings, task.tables_region, task.holder, task.run_id, task.archive])
        places = {("read", task.read_topic, task.partition), ("written", task.write_topic, task.partition)}
        for taken, numbers in found:
            if alike in taken and not places & taken:
                taken.update(places)
                numbers.append(number)
                break
        else:
            found.append(({alike, *places}, [number]))
    return [numbers for _, numbers in found]


def by_batches(task: CopyTask) -> bool:
    """Whether a lane's batches may be copied as they are: one that passes gets no origin, and no rule changes it."""
    as_they_are = _origin(task) is None and task.settings.rule_of(task.read_topic) is None
    return task.archive is None and task.settings.copying == "auto" and as_they_are


def _replicator(tasks: Sequence[CopyTask], engine: Engine) -> Replicator:
    """The replicator of some lanes of a job, by one writer."""
    first, of = tasks[0], {task.lane_topic: task for task in tasks}
    settings = msgspec.structs.replace(first.settings, delivery="exactly_once")
    target = warm_target(msgspec.json.encode(settings), engine)
    return wired_replicator(
        settings,
        _tables(first),
        target,
        remote_topic=lambda topic: of[topic].write_topic,
        source=_Described(KafkaSource(settings), {topic: task.read_topic for topic, task in of.items()}),
        holder=first.holder,
        examined=True,
        terms=target.terms if isinstance(target, KafkaBatchTarget) else lambda _: None,
        origin=lambda topic: _origin(of[topic]),
        rules=flow_rules(settings, _tables(first), lambda topic: of[topic].read_topic),
    )


def _tables(task: CopyTask) -> Any:
    return warm_tables(task.tables_region or task.settings.target.region, task.settings.tables_role)


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


@dataclass(slots=True)
class NamedLog:
    """Implements `Log`, likewise."""

    log: Log
    places: Mapping[TopicPartition, TopicPartition]
    """Of the log, by those of the lanes."""
    _names: Mapping[TopicPartition, TopicPartition] = field(init=False)

    def __post_init__(self) -> None:
        """Turn them around."""
        self._names = {place: name for name, place in self.places.items()}

    def follow(self, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int] = NOTHING_MORE) -> None:
        """See `Log.follow`."""
        begun, ends = ({self.places[place]: at for place, at in each.items()} for each in (offsets, below))
        self.log.follow(begun, ends)

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """See `Log.leave`."""
        self.log.leave([self.places[place] for place in places])

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """See `Log.arrivals`."""
        return self.log.arrivals(seconds, records=records, size=size).renamed(self._names)

    def reading_on(self) -> AbstractContextManager[None]:
        """See `Log.reading_on`."""
        return self.log.reading_on()

    def close(self) -> None:
        """See `Log.close`."""
        self.log.close()


TOGETHER: Final = 6
"""Lanes of one task, at most: each holds a chunk of its log, and more would save little of a request."""


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
    """The same, each lane with its ending."""
    tasks, began = msgspec.json.decode(task, type=list[CopyTask]), time.process_time()
    limit_garbage_collection()
    found: dict[int, CopyResult] = {}
    for numbers in apart(tasks):
        some = [tasks[number] for number in numbers]
        results = result_of(partial(_copied, some, attempt, ending), attempt, failed=partial(_failed, some))
        found.update(zip(numbers, results, strict=True))
    each = (time.process_time() - began) / len(tasks)
    return msgspec.json.encode([msgspec.structs.replace(found[number], cpu_seconds=each) for number in sorted(found)])


def _copied(tasks: Sequence[CopyTask], attempt: TaskAttempt, ending: EndingOf) -> list[CopyResult]:
    return wire_copy(tasks, attempt, ending).run()


def _failed(tasks: Sequence[CopyTask], error: str) -> list[CopyResult]:
    return [CopyResult(lane=str(each.lane), partition=each.partition, state="failed", error=error) for each in tasks]
