"""The copy of one lane in its task: the replicator, the stores and the clients, wired."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import msgspec

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.clock import now_ms
from mirrorless.jobs.batch_copy import BatchCopy
from mirrorless.jobs.copy_task import CopyResult, CopyTask, LaneLog
from mirrorless.jobs.engine_choice import EngineChoice
from mirrorless.jobs.lane_copy import CHUNK_SECONDS, Ending, LaneCopy, deadline_in
from mirrorless.jobs.shared_transactions import SharedTransactions
from mirrorless.origin import OriginRule
from mirrorless.ports.kafka import Deadline, Source, SourceTopic
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from mirrorless.record_batch import PassTerms
from mirrorless.settings import FlowSettings
from spark.jobs.clients import warm_archive, warm_batch_log, warm_batch_target, warm_log, warm_tables, warm_target
from spark.jobs.lane_tasks import TaskAttempt, limit_garbage_collection, result_of

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


def copy_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `CopyTask`, from its JSON to that of its `CopyResult`: the work that `run_lanes` sends.

    Raises:
        Retriable: Spark tries again; at the last attempt the result is `failed` instead.
    """
    return msgspec.json.encode(copied(msgspec.json.decode(task, type=CopyTask), attempt))


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
        by_batches=batch_copy,
        shared=beside.shared,
        leases=states if task.holder else None,
        files=open_job_files(task.files) if task.files else None,
        ending=ending,
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
    """Whether a lane's batches may be copied as they are. One that passes cannot be marked with an origin."""
    return task.archive is None and task.settings.copy == "auto" and _origin(task) is None


def _replicator(tasks: Sequence[CopyTask], target: KafkaTarget, terms: Callable[[str], PassTerms | None]) -> Replicator:
    """The replicator of some lanes of a job, by one writer."""
    first, of = tasks[0], {task.lane_topic: task for task in tasks}
    settings, dynamodb = _exactly_once(first), _tables(first)
    chains = DynamoDbChains(dynamodb, settings.tables.offset_map, retention_days=settings.map_retention_days)
    return Replicator(
        flow=settings.name,
        delivery="exactly_once",
        remote_topic=lambda topic: of[topic].write_topic,
        chains=chains,
        positions=Positions(chains=chains, states=_states(first), target=target, clock=now_ms),
        ledger=DynamoDbLossLedger(dynamodb, settings.tables.loss_ledger),
        target=target,
        source=_Described(KafkaSource(settings), {topic: task.read_topic for topic, task in of.items()}),
        clock=now_ms,
        new_id=lambda: uuid4().hex,
        holder=first.holder,
        examined=True,
        terms=terms,
        origin=lambda topic: _origin(of[topic]),
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
