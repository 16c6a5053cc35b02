"""What does a Spark worker do for one lane? It wires a replicator for its task, copies, and says what became of it.

Spark uses its Python processes again, task after task: clients of the same clusters stay warm in between.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from uuid import uuid4

import msgspec

from mirrorless.adapters.archive.lane_log import ParquetArchive, open_archive
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.errors import MirrorlessError
from mirrorless.jobs.copy_task import CopyTask, LaneLog
from mirrorless.jobs.lane_copy import Ending, LaneCopy
from mirrorless.ports.kafka import Deadline, Source, SourceTopic
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from mirrorless.settings import ClusterSettings, FlowSettings
from spark.lane_tasks import TaskAttempt

LEFT_OVER_OBJECTS = 10_000
"""Container objects that outlived their chunks before the collector looks at them."""


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def copy_lane(task: bytes, attempt: TaskAttempt) -> bytes:
    """Do one `CopyTask`, from JSON to the JSON of its `CopyResult`. This is the work that `run_lanes` sends.

    Raises:
        Retriable: and Spark tries again; at the last attempt the result is `failed` instead.
    """
    return msgspec.json.encode(finished(wire_copy(msgspec.json.decode(task, type=CopyTask), attempt), attempt))


def finished(copy: LaneCopy, attempt: TaskAttempt) -> Any:
    """Run a wired copy; its failure is a result where no retry helps, or none is left."""
    calm_the_collector()
    try:
        return copy.run()
    except MirrorlessError as exc:
        if exc.retriable and not attempt.last:
            copy.note("running", f"tried again by Spark: {exc}", force=True)
            raise
        return copy.result("failed", error=str(exc))


def wire_copy(task: CopyTask, attempt: TaskAttempt, *, ending: Callable[[CopyTask], Ending] | None = None) -> LaneCopy:
    """A task with everything that it touches."""
    settings = msgspec.structs.replace(task.settings, delivery="exactly_once")
    dynamodb = dynamodb_client(task.tables_region or settings.target.region, settings.tables_role)
    tables = settings.tables
    chains = DynamoDbChains(dynamodb, tables.offset_map, retention_days=settings.map_retention_days)
    states = DynamoDbLaneStates(dynamodb, tables.lanes)
    target = warm_target(msgspec.json.encode(settings))
    return LaneCopy(
        task=task,
        replicator=Replicator(
            flow=settings.name,
            delivery="exactly_once",
            remote_topic=lambda _: task.write_topic,
            chains=chains,
            positions=Positions(chains=chains, states=states, target=target, clock=now),
            ledger=DynamoDbLossLedger(dynamodb, tables.loss_ledger),
            target=target,
            source=_Described(KafkaSource(settings), task.read_topic),
            clock=now,
            new_id=lambda: uuid4().hex,
            holder=task.holder,
            examined=True,
        ),
        log=lane_log(task),
        leases=states if task.holder else None,
        files=open_job_files(task.files) if task.files else None,
        ending=ending(task) if ending is not None else None,
        attempt=attempt.number,
        clock=now,
    )


def lane_log(task: CopyTask) -> LaneLog:
    """Where a task reads."""
    if task.archive is not None:
        return warm_archive(task.archive)
    return warm_log(msgspec.json.encode(task.settings.source), task.settings.flow)


@cache
def warm_log(cluster: bytes, flow: str) -> KafkaLaneLog:
    """The process's consumer of a cluster, given as JSON."""
    return KafkaLaneLog(msgspec.json.decode(cluster, type=ClusterSettings), flow=flow)


@cache
def warm_archive(place: str) -> ParquetArchive:
    """The process's view of an archive: footers are read once, not once for each lane."""
    return open_archive(place)


@cache
def warm_target(settings: bytes) -> KafkaTarget:
    """The process's writer for a flow, given as JSON: its transactional id is its own."""
    return KafkaTarget(msgspec.json.decode(settings, type=FlowSettings), environment=uuid4().hex)


class _Described:
    """Implements `mirrorless.ports.kafka.Source`: a lane beside the flow's is named as no topic is."""

    def __init__(self, source: Source, topic: str) -> None:
        self._source, self._topic = source, topic

    def describe(self, topic: str, deadline: Deadline) -> SourceTopic:  # noqa: ARG002 -- the lane's name, not a topic's
        """See `Source.describe`."""
        return self._source.describe(self._topic, deadline)


def calm_the_collector() -> None:
    """Records hold no cycles; the collector would walk twenty thousand of them again and again."""
    if gc.isenabled():
        gc.freeze()
        gc.disable()
    elif gc.get_count()[0] > LEFT_OVER_OBJECTS:
        gc.collect()
