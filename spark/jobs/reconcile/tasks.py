"""Spark tasks of the reconcile job: they inspect a lane, find its orphans, join some lanes, or add up what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from uuid import uuid4

import msgspec

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.clock import now_ms
from mirrorless.lane import FlowName
from mirrorless.ports.kafka import Deadline, TopicPartition
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
from mirrorless.reconcile.inspect import SECONDS, LaneEnds, LaneView
from mirrorless.reconcile.join import BackLaneJoin
from mirrorless.reconcile.looks import KeptPlaces
from mirrorless.reconcile.outcome import Tally
from mirrorless.settings import ClusterSettings, FlowSettings
from spark.jobs.clients import warm_log, warm_tables, warm_target
from spark.jobs.lane_tasks import TaskAttempt, result_of


def inspect_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `InspectTask`: from its JSON to that of a `LaneInspection`.

    Raises:
        Retriable: Spark tries again; at the last attempt the lane is left alone instead.
    """
    wanted = msgspec.json.decode(task, type=InspectTask)
    return msgspec.json.encode(
        result_of(
            lambda: lane_view(wanted.settings, wanted.files, f"{wanted.topic}-{wanted.partition}").inspect(wanted),
            attempt,
            failed=lambda error: LaneInspection(
                topic=wanted.topic, partition=wanted.partition, remote_topic=wanted.remote_topic, differs=error
            ),
        )
    )


def find_orphans(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `OrphanTask`: from its JSON to that of an `LaneOrphans`.

    Raises:
        Retriable: Spark tries again; at the last attempt the result has the error.
    """
    wanted = msgspec.json.decode(task, type=OrphanTask)
    return msgspec.json.encode(
        result_of(
            lambda: lane_view(wanted.settings, wanted.files, f"{wanted.names.topic}-{wanted.names.partition}").orphans(
                wanted
            ),
            attempt,
            failed=lambda error: LaneOrphans(names=wanted.names, until=wanted.position, error=error),
        )
    )


def join_lanes(task: bytes, _: TaskAttempt) -> bytes:
    """Do one `JoinTask`: from its JSON to that of a `LaneJoined` for each lane.

    A lane that fails is not tried again, nor does it keep the others from their turn: the next run joins the rest.
    """
    wanted = msgspec.json.decode(task, type=JoinTask)
    tables = _tables(wanted.settings)
    joining = BackLaneJoin(
        chains=_chains(wanted.settings),
        ledger=DynamoDbLossLedger(tables, wanted.settings.tables.loss_ledger),
        clock=now_ms,
        request=wanted.run_id,
    )
    return msgspec.json.encode([_joined(joining, lane, wanted.settings.name) for lane in wanted.lanes])


def _joined(joining: BackLaneJoin, lane: LaneToJoin, flow: FlowName) -> LaneJoined:
    return result_of(
        lambda: LaneJoined(position=joining.join(lane, flow)),
        TaskAttempt(number=0, last=True),
        failed=lambda error: LaneJoined(error=error),
    )


def tally_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `TallyTask`: from its JSON to that of a `LaneTally`.

    Raises:
        Retriable: Spark tries again; at the last attempt the result has the error.
    """
    wanted = msgspec.json.decode(task, type=TallyTask)
    tally = Tally(chains=_chains(wanted.settings), request=wanted.run_id)
    lane = wanted.names.of(wanted.settings.name)
    return msgspec.json.encode(
        result_of(
            lambda: tally.of(lane, wanted.policy, wanted.position, mapped=wanted.mapped),
            attempt,
            failed=lambda error: LaneTally(error=error),
        )
    )


def lane_view(settings: FlowSettings, files: str, lane: str) -> LaneView:
    """The view of a flow's lanes, wired; its looks have the places of one lane."""
    return LaneView(
        chains=_chains(settings),
        states=DynamoDbLaneStates(_tables(settings), settings.tables.lanes),
        target=warm_target(msgspec.json.encode(settings)),
        source_log=warm_log(msgspec.json.encode(settings.source), settings.flow),
        target_log=warm_log(msgspec.json.encode(settings.target), settings.flow),
        source_ends=_ends(settings.source, settings.flow),
        target_ends=_ends(settings.target, settings.flow),
        kept=KeptPlaces(files=open_job_files(files) if files else None, lane=lane),
    )


def _tables(settings: FlowSettings) -> Any:
    return warm_tables(settings.target.region, settings.tables_role)


def _chains(settings: FlowSettings) -> DynamoDbChains:
    return DynamoDbChains(_tables(settings), settings.tables.offset_map, retention_days=settings.map_retention_days)


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
