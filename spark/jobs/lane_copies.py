"""The copy of one lane in its task: the replicator, the stores and the clients, wired."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
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
from mirrorless.jobs.lane_copy import Ending, LaneCopy
from mirrorless.origin import OriginRule
from mirrorless.ports.kafka import Deadline, Source, SourceTopic
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from mirrorless.record_batch import PassTerms
from spark.jobs.clients import warm_archive, warm_batch_log, warm_batch_target, warm_log, warm_tables, warm_target
from spark.jobs.lane_tasks import TaskAttempt, limit_garbage_collection, result_of

COPIED_BYTES: Final = 32_000_000
"""Of whole batches in one chunk of a copy: they are held as they came, and a transaction has its own cost."""


def copy_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `CopyTask`, from its JSON to that of its `CopyResult`: the work that `run_lanes` sends.

    Raises:
        Retriable: Spark tries again; at the last attempt the result is `failed` instead.
    """
    return msgspec.json.encode(copied(msgspec.json.decode(task, type=CopyTask), attempt))


def copied(
    task: CopyTask, attempt: TaskAttempt, *, ending: Callable[[CopyTask], Ending] | None = None, slot: int = 0
) -> CopyResult:
    """Wire a copy and run it; see `result_of`. Copies at the same time have a slot each."""
    return result_of(
        lambda: finished(wire_copy(task, attempt, ending=ending, slot=slot), attempt),
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
    task: CopyTask, attempt: TaskAttempt, *, ending: Callable[[CopyTask], Ending] | None = None, slot: int = 0
) -> LaneCopy:
    """A task with its replicators, stores and clients; those of its slot."""
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
        target = warm_batch_target(msgspec.json.encode(settings), slot)
        by_batches = BatchCopy(
            replicator=replicator(target, target.terms),
            log=warm_batch_log(msgspec.json.encode(settings.source), settings.flow, COPIED_BYTES, slot),
            terms=lambda: target.terms(task.write_topic),
        )
    return LaneCopy(
        task=task,
        replicator=replicator(warm_target(msgspec.json.encode(settings), slot), lambda _: None),
        log=lane_log(task, slot),
        by_batches=by_batches,
        leases=states if task.holder else None,
        files=open_job_files(task.files) if task.files else None,
        ending=ending(task) if ending is not None else None,
        attempt=attempt.number,
        clock=now_ms,
    )


def _no_origin(_: str) -> OriginRule | None:
    return None


class _Described:
    """Implements `mirrorless.ports.kafka.Source`: the lane of a job may have a name that no topic has."""

    def __init__(self, source: Source, topic: str) -> None:
        self._source, self._topic = source, topic

    def describe(self, topic: str, deadline: Deadline) -> SourceTopic:  # noqa: ARG002 -- the lane's name, not a topic's
        """See `Source.describe`."""
        return self._source.describe(self._topic, deadline)


def lane_log(task: CopyTask, slot: int = 0) -> LaneLog:
    """The log that a task reads."""
    if task.archive is not None:
        return warm_archive(task.archive)
    return warm_log(msgspec.json.encode(task.settings.source), task.settings.flow, slot)
