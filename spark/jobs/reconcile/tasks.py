"""Spark tasks of the reconcile job: they inspect a lane, find its orphans, join some lanes, or add up what was done.

The join of all lanes by tasks, one for each journal, and the sums of what the run did, by one for each lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from pyspark import SparkContext

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.chain.entry import Journal
from mirrorless.chain.lane import Lane
from mirrorless.clock import Deadline, now_ms
from mirrorless.flow.settings import ClusterSettings, FlowSettings
from mirrorless.ports.kafka import TopicPartition
from mirrorless.reconcile.conflicts import ConflictTask, LaneConflicts
from mirrorless.reconcile.findings import (
    InspectTask,
    JoinTask,
    LaneInspection,
    LaneJoined,
    LaneOrphans,
    LaneTally,
    LaneToJoin,
    OrphanTask,
    TallyTask,
)
from mirrorless.reconcile.inspect import SECONDS, KeptPlaces, LaneEnds, LaneView
from mirrorless.reconcile.join import BackLaneJoin
from mirrorless.reconcile.outcome import Tally
from spark.jobs.clients import warm_log, warm_tables, warm_target
from spark.jobs.lane_tasks import TaskAttempt, result_of, run_lanes
from spark.jobs.reconcile.conflicts import find_conflicts
from spark.jobs.reconcile.summary import LaneUnderWay

T = TypeVar("T")

ReconcileTask = InspectTask | OrphanTask | JoinTask | TallyTask | ConflictTask


def results_of(context: SparkContext, tasks: Sequence[ReconcileTask], kind: type[T]) -> list[T]:
    """The result of each task, in their order. Args: kind: of a result."""
    found = run_lanes(context, do_task, [msgspec.json.encode(task) for task in tasks])
    return [msgspec.json.decode(each, type=kind) for each in found]


def do_task(text: bytes, attempt: TaskAttempt) -> bytes:
    """Do one task, from its JSON to that of its result.

    Raises:
        Retriable: Spark tries again; at the last attempt the result has the error.
    """
    match msgspec.json.decode(text, type=ReconcileTask):
        case InspectTask() as look:
            found: object = result_of(
                lambda: _view(look.settings, look.files, look.lane).inspect(look),
                attempt,
                failed=lambda error: LaneInspection(
                    topic=look.topic, partition=look.partition, remote_topic=look.remote_topic, differs=error
                ),
            )
        case OrphanTask() as search:
            found = result_of(
                lambda: _view(search.settings, search.files, search.lane.forward).orphans(search),
                attempt,
                failed=lambda error: LaneOrphans(until=search.position, error=error),
            )
        case ConflictTask() as keys:
            found = result_of(lambda: find_conflicts(keys), attempt, failed=lambda error: LaneConflicts(error=error))
        case TallyTask() as sums:
            tally = Tally(chains=_chains(sums.settings), request=sums.run_id)
            found = result_of(
                lambda: tally.of(sums.lane, sums.policy, sums.position, mapped=sums.mapped),
                attempt,
                failed=lambda error: LaneTally(error=error),
            )
        case JoinTask() as joins:
            # A lane that fails is not tried again, nor keeps the others from their turn: the next run joins the rest.
            joining = BackLaneJoin(
                chains=_chains(joins.settings),
                ledger=DynamoDbLossLedger(_tables(joins.settings), joins.settings.tables.loss_ledger),
                clock=now_ms,
                request=joins.run_id,
            )
            found = [_joined(joining, lane) for lane in joins.lanes]
    return msgspec.json.encode(found)


def _joined(joining: BackLaneJoin, lane: LaneToJoin) -> LaneJoined:
    return result_of(
        lambda: LaneJoined(position=joining.join(lane)),
        TaskAttempt(number=0, last=True),
        failed=lambda error: LaneJoined(error=error),
    )


def _view(settings: FlowSettings, files: str, lane: Lane) -> LaneView:
    """The view of a flow's lanes, wired; its looks have the places of one lane."""
    return LaneView(
        chains=_chains(settings),
        states=DynamoDbLaneStates(_tables(settings), settings.tables.lanes),
        target=warm_target(msgspec.json.encode(settings)),
        source_log=warm_log(msgspec.json.encode(settings.source), settings.flow),
        target_log=warm_log(msgspec.json.encode(settings.target), settings.flow),
        source_ends=_ends(settings.source, settings.flow),
        target_ends=_ends(settings.target, settings.flow),
        kept=KeptPlaces(files=open_job_files(files) if files else None, lane=f"{lane.topic}-{lane.partition}"),
    )


def _tables(settings: FlowSettings) -> Any:
    return warm_tables(settings.target.region, settings.tables_role)


def _chains(settings: FlowSettings) -> DynamoDbChains:
    days = settings.offset_map_retention_days
    return DynamoDbChains(_tables(settings), settings.tables.offset_map, retention_days=days)


def _ends(cluster: ClusterSettings, flow: str) -> LaneEnds:
    records = ends_of(cluster, flow)

    def ends(topic: str, partition: int) -> tuple[int, int, int] | None:
        return records([(topic, partition)], lambda: SECONDS).get((topic, partition))

    return ends


def ends_of(
    cluster: ClusterSettings, flow: str
) -> Callable[[Iterable[TopicPartition], Deadline], dict[TopicPartition, tuple[int, int, int]]]:
    """The read of first offsets, stable ends and high watermarks of a cluster's partitions."""
    return _warm_records(msgspec.json.encode(cluster), flow).ends


@cache
def _warm_records(cluster: bytes, flow: str) -> KafkaRecords:
    """The process's admin client of a cluster, given as JSON."""
    settings = msgspec.json.decode(cluster, type=ClusterSettings)
    return KafkaRecords(settings, flow=flow, client_role=f"reconcile-{uuid4().hex[:8]}")


def join_all(context: SparkContext, settings: FlowSettings, run_id: str, lanes: Sequence[LaneUnderWay]) -> None:
    """Join the copies and orphans of lanes to their chains; positions and errors are noted in them.

    Lanes share a journal, in which two tasks would take each other's places.
    """
    journals: dict[Journal, list[LaneUnderWay]] = {}
    for each in lanes:
        journals.setdefault(Journal.of(each.lane.forward), []).append(each)
    tasks = [JoinTask(settings=settings, run_id=run_id, lanes=tuple(map(_to_join, some))) for some in journals.values()]
    found = results_of(context, tasks, list[LaneJoined])
    for some, results in zip(journals.values(), found, strict=True):
        for each, result in zip(some, results, strict=True):
            each.position, each.error = result.position, result.error


def tallies(
    context: SparkContext, settings: FlowSettings, run_id: str, lanes: Sequence[LaneUnderWay]
) -> Mapping[int, LaneTally]:
    """What the run did in each lane that was not left alone, over all its attempts; by the lane's place in `lanes`."""
    wanted = {number: each for number, each in enumerate(lanes) if not each.inspection.differs}
    tasks = [
        TallyTask(
            settings=settings,
            run_id=run_id,
            lane=each.lane,
            position=each.inspection.position,
            policy=each.policy,
            mapped=not each.error,
        )
        for each in wanted.values()
    ]
    return dict(zip(wanted, results_of(context, tasks, LaneTally), strict=True))


def _to_join(each: LaneUnderWay) -> LaneToJoin:
    return LaneToJoin(
        lane=each.lane,
        position=each.inspection.position,
        chain_end=each.inspection.chain_end,
        until=each.until,
        orphans=each.orphans,
        policy=each.policy,
    )
