"""What does a Spark task of the reconcile job do? It looks at one lane, or finds its orphans, and says what it saw."""

from __future__ import annotations

from functools import cache
from uuid import uuid4

import msgspec

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.errors import MirrorlessError
from mirrorless.reconcile.findings import LaneLook, LookTask, OrphanLook, OrphanTask
from mirrorless.reconcile.inspect import SECONDS, LaneEnds, LaneView
from mirrorless.settings import ClusterSettings, FlowSettings
from spark.lane_tasks import TaskAttempt
from spark.lane_worker import warm_log, warm_target


def look_at_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `LookTask`: from its JSON to that of a `LaneLook`.

    Raises:
        Retriable: and Spark tries again; at the last attempt the lane is left alone instead.
    """
    wanted = msgspec.json.decode(task, type=LookTask)
    try:
        found = lane_view(wanted.settings).look(wanted)
    except MirrorlessError as exc:
        if exc.retriable and not attempt.last:
            raise
        found = LaneLook(
            topic=wanted.topic, partition=wanted.partition, remote_topic=wanted.remote_topic, differs=str(exc)
        )
    return msgspec.json.encode(found)


def find_orphans(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `OrphanTask`: from its JSON to that of an `OrphanLook`.

    Raises:
        Retriable: and Spark tries again; at the last attempt the error is the answer.
    """
    wanted = msgspec.json.decode(task, type=OrphanTask)
    try:
        found = lane_view(wanted.settings).orphans(wanted)
    except MirrorlessError as exc:
        if exc.retriable and not attempt.last:
            raise
        found = OrphanLook(names=wanted.names, until=wanted.position, error=str(exc))
    return msgspec.json.encode(found)


def lane_view(settings: FlowSettings) -> LaneView:
    """Everything that shows a flow's lanes, wired."""
    dynamodb = dynamodb_client(settings.target.region, settings.tables_role)
    return LaneView(
        chains=DynamoDbChains(dynamodb, settings.tables.offset_map, retention_days=settings.map_retention_days),
        states=DynamoDbLaneStates(dynamodb, settings.tables.lanes),
        target=warm_target(msgspec.json.encode(settings)),
        source_log=warm_log(msgspec.json.encode(settings.source), settings.flow),
        target_log=warm_log(msgspec.json.encode(settings.target), settings.flow),
        source_ends=_ends(settings.source, settings.flow),
        target_ends=_ends(settings.target, settings.flow),
        transactional=settings.delivery == "exactly_once",
    )


def _ends(cluster: ClusterSettings, flow: str) -> LaneEnds:
    records = _warm_records(msgspec.json.encode(cluster), flow)

    def ends(topic: str, partition: int) -> tuple[int, int, int] | None:
        return records.ends([(topic, partition)], lambda: SECONDS).get((topic, partition))

    return ends


@cache
def _warm_records(cluster: bytes, flow: str) -> KafkaRecords:
    """The process's admin client of a cluster, given as JSON."""
    settings = msgspec.json.decode(cluster, type=ClusterSettings)
    return KafkaRecords(settings, flow=flow, client_role=f"reconcile-{uuid4().hex[:8]}")
