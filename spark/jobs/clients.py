"""Clients that a worker keeps: Spark uses its Python processes again, task after task."""

from __future__ import annotations

from functools import cache
from typing import Any
from uuid import uuid4

import msgspec

from mirrorless.adapters.archive import ParquetArchive, open_archive
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.kafka.batch_target import KafkaBatchTarget
from mirrorless.adapters.kafka.lane_log import KafkaBatchLaneLog, KafkaLaneLog
from mirrorless.adapters.kafka.log import JOB, KafkaLog
from mirrorless.adapters.kafka.log_epochs import KafkaLogEpochs
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.adapters.kafka.wire.raw_log import PART_BYTES, KafkaRawLog
from mirrorless.flow.rate_limit import ByteRateLimit
from mirrorless.flow.settings import ClusterSettings, FlowSettings
from mirrorless.ports.log import Log
from mirrorless.protocol.copy_choice import Engine


@cache
def warm_tables(region: str | None, role: str | None) -> Any:
    """The process's client of the tables: to make one takes as much CPU as to copy some thousand records."""
    return dynamodb_client(region, role, direct=True)


@cache
def warm_log(cluster: bytes, flow: str) -> KafkaLaneLog:
    """The process's consumer of a cluster, given as JSON."""
    return KafkaLaneLog(msgspec.json.decode(cluster, type=ClusterSettings), flow=flow)


@cache
def warm_epochs(cluster: bytes, flow: str) -> KafkaLogEpochs:
    """What tells logs of a cluster from others, given as JSON."""
    return KafkaLogEpochs(msgspec.json.decode(cluster, type=ClusterSettings), flow=flow)


@cache
def warm_batch_log(cluster: bytes, flow: str) -> KafkaBatchLaneLog:
    """The process's reader of a cluster by whole batches, given as JSON; it connects once there is one to read."""
    return KafkaBatchLaneLog(msgspec.json.decode(cluster, type=ClusterSettings), flow=flow)


@cache
def warm_copied_log(cluster: bytes, flow: str, engine: Engine, *, alone: bool) -> Log:
    """The process's reader of what a task copies, of a cluster given as JSON. Args: alone: whether of one lane."""
    settings = msgspec.json.decode(cluster, type=ClusterSettings)
    if engine == "records":
        return KafkaLog(settings, flow=flow, tuning=JOB)
    return KafkaRawLog(settings, flow=flow, part_bytes=PART_BYTES * (1 + alone))


@cache
def warm_limit(run_id: str, bytes_per_second: float) -> ByteRateLimit:  # noqa: ARG001 -- of the cache
    """The process's part of a job's cap: one for all lanes that it copies, at the same time or one after the other."""
    return ByteRateLimit(bytes_per_second)


@cache
def warm_archive(place: str) -> ParquetArchive:
    """The process's view of an archive: footers are read once, not once for each lane."""
    return open_archive(place)


@cache
def warm_target(settings: bytes, engine: Engine) -> KafkaTarget:
    """The process's writer of an engine for a flow, given as JSON: its transactional id is its own."""
    target = KafkaBatchTarget if engine == "batches" else KafkaTarget
    return target(msgspec.json.decode(settings, type=FlowSettings), environment=uuid4().hex)
