"""The scheduled function that reads many topics without event source mappings: one schedule for each shard of a flow.

A run takes the lease of its shard, reads what is behind, replicates it by the steps of the forwarder, and ends when it
is drained. With `continuous` it reads on until its successor waits, so that each minute's schedule finds either a run
that goes on, or one to take over from. The schedule's input is the whole configuration: mirrorless.flow.settings.

Variable: MIRRORLESS_METRICS_PER_TOPIC, `true` emits metrics by topic beside the flow's.
"""

from __future__ import annotations

import gc
import os
import time
from typing import Any
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from mirrorless.adapters.aws.metrics import BatchMetrics, emit_report
from mirrorless.adapters.aws.runtime import keep_memory
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.log import PULL, KafkaLog
from mirrorless.adapters.kafka.log_epochs import KafkaLogEpochs
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.adapters.replicator import LARGEST_RECORD, flow_replicator
from mirrorless.clock import now_ms
from mirrorless.copy.pull import PullReport, PullRun
from mirrorless.copy.readings import Readings
from mirrorless.copy.shards import ShardLease
from mirrorless.flow.counts import Count
from mirrorless.flow.naming import METRICS_PER_TOPIC_VARIABLE
from mirrorless.flow.rate_limit import ByteRateLimit
from mirrorless.flow.settings import FlowSettings, PullSettings, pull_settings
from mirrorless.flow.triggers import WINDOW_SECONDS
from mirrorless.ports.log import BoundedLog
from mirrorless.protocol.copy_choice import BatchTally, Engine, engine_of
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.scheduled.functions import shard_task
from mirrorless.scheduled.runner import TROUBLES, TaskReport
from mirrorless.topics.pause import read_pause
from mirrorless.topics.scheduled_topics import read_scheduled_ids, read_scheduled_topics

CONTINUOUS_SECONDS = 13 * 60.0
"""After which a continuous run gives way: Lambda ends it after 15 minutes, and its successor is started in between."""

CLAIM_SECONDS = 0.2
"""Between two tries of a successor to take the shard."""

MEASURED_SECONDS = 3_600.0
"""After which lanes that are copied by records are read by batches once more: the Kafka client shows none."""

LEFT_OVER_OBJECTS = 10_000
"""Container objects left over from transactions before the garbage collector runs."""


class PullWiring:
    """The warm clients of one shard, and what is remembered of its lanes from run to run."""

    def __init__(self, settings: PullSettings) -> None:
        """Make the clients; none of them connects here."""
        self.settings, flow = settings, settings.flow
        self.environment = uuid4().hex[:12]
        self.readings = Readings()
        self.engine: Engine = "batches"
        """Of the last run."""
        self.engine_at = time.monotonic()
        """When it was chosen."""
        self.copies: dict[Engine, tuple[Replicator, BoundedLog]] = {}
        """The clients of each engine that a run has had."""
        cap = settings.maximum_bytes_per_second
        self.limit = ByteRateLimit(cap / settings.shards) if cap else None
        self.dynamodb = dynamodb_client(flow.target.region, flow.tables_role, direct=True)
        self.documents = DynamoDbDocuments(self.dynamodb, flow.tables.control)
        self.groups = KafkaGroups(flow.source, flow=flow.flow)
        self.epochs = KafkaLogEpochs(flow.source, flow=flow.flow)
        per_topic = flow.remote_topic if os.environ.get(METRICS_PER_TOPIC_VARIABLE) == "true" else None
        self.metrics = BatchMetrics(flow.name, per_topic=per_topic)

    def clients(self, engine: Engine) -> tuple[Replicator, BoundedLog]:
        """The clients of an engine; those of the other one are closed, and forget what they knew."""
        for other, (replicator, log) in self.copies.items():
            if other != engine:
                replicator.forget()
                log.close()
        if engine not in self.copies:
            flow = self.settings.flow
            flow = replace(flow, producer={"message.max.bytes": LARGEST_RECORD} | flow.producer)
            # The same id in every environment and engine: a run that begins fences whatever the one before left open.
            writer = f"pull.{self.settings.shard}"
            replicator = flow_replicator(flow, self.dynamodb, environment=writer, engine=engine, examined=True)
            self.copies[engine] = replicator, _log(flow, engine)
        return self.copies[engine]

    def choose_engine(self) -> Engine:
        """The engine of the next run, by what asks for it and by what the lanes' batches were like."""
        lanes, now = self.readings.lanes.values(), time.monotonic()
        if self.engine == "records" and now - self.engine_at >= MEASURED_SECONDS:
            for each in lanes:
                each.tally = BatchTally(by_client=each.tally.by_client)
        flow = self.settings.flow
        asked = flow.copying if flow.delivery == "exactly_once" and not flow.origins else "records"
        engine = engine_of(asked, [each.tally for each in lanes])
        if engine != self.engine:
            self.engine, self.engine_at = engine, now
            self.readings.found_at = None  # the other engine's memory of positions is old
        return engine

    def run(self, lease: ShardLease, request: str, began: int, report: PullReport) -> PullRun:
        """A run under this lease, by the engine of now.

        Args:
            lease: of the shard.
            request: id of the Lambda request.
            began: when the function did, ms since the epoch.
            report: of the runs of this request.
        """
        settings, flow = self.settings, self.settings.flow
        replicator, log = self.clients(self.choose_engine())
        return PullRun(
            replicator=replicator,
            log=log,
            groups=self.groups,
            epochs=self.epochs,
            lease=lease,
            clock=now_ms,
            topics=self._topics,
            topic_ids=lambda: read_scheduled_ids(self.documents, self.settings.flow.name),
            consumer_group=flow.consumer_group,
            shard=settings.shard,
            shards=settings.shards,
            continuous=settings.continuous,
            limit=self.limit,
            window_seconds=settings.window_seconds if settings.continuous else WINDOW_SECONDS,
            request=request,
            on_batch=self._measured,
            on_minute=lambda report: self.note(report, began),
            readings=self.readings,
            report=report,
        )

    def note(self, report: PullReport, began: int) -> None:
        """Write the shard's report, for `mirrorless status` and as metrics."""
        flow, task, now = self.settings.flow.name, shard_task(self.settings.shard), now_ms()
        counts: dict[Count, int] = {
            "pull-records": report.records,
            "pull-bytes": report.bytes,
            "pull-bytes-passed": report.passed_bytes,
            "pull-transactions": report.transactions,
            "pull-failures": report.failures,
            "pull-limited-ms": report.limited_ms,
            "pull-lanes": report.lanes,
        }
        troubles = tuple(report.troubles[:TROUBLES])
        done = TaskReport(task=task, at=now, ms=now - began, ok_at=now, troubles=troubles, counts=dict(counts.items()))
        self.documents.write(flow, {f"task/{task}": msgspec.json.encode(done)})
        emit_report(flow, done)

    def _topics(self) -> dict[str, int]:
        """The topics to read: none while the flow is paused."""
        name = self.settings.flow.name
        return {} if read_pause(self.documents, name).paused else read_scheduled_topics(self.documents, name)

    def _measured(self, batch: Batch, outcome: BatchOutcome, received_at: int) -> None:
        self.metrics.add(batch, outcome, received_at=received_at, now=now_ms())
        if gc.get_count()[0] > LEFT_OVER_OBJECTS:
            gc.collect()


def _log(flow: FlowSettings, engine: Engine) -> BoundedLog:
    if engine == "batches":
        return KafkaRawLog(flow.source, flow=flow.flow)
    return KafkaLog(flow.source, flow=flow.flow, tuning=PULL)


keep_memory()
# See `forward`: the collector runs between transactions, once enough is left over, and not many times in each.
gc.freeze()
gc.disable()
warm: dict[bytes, PullWiring] = {}
"""The wiring of the last input; another input has another one."""


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Do one run.

    Args:
        event: the schedule's input.
        context: Lambda's context: the request id and the time that is left.

    Returns:
        what was done; `ended` is `held` where another run has the shard and goes on.
    """
    settings = pull_settings(event)
    key = msgspec.json.encode(settings)
    if key not in warm:
        warm.clear()
        warm[key] = PullWiring(settings)
    wiring, flow = warm[key], settings.flow.name
    began = now_ms()
    left = context.get_remaining_time_in_millis() / 1000
    lasts = min(left, CONTINUOUS_SECONDS) if settings.continuous else left
    ends, report = time.monotonic() + lasts, PullReport()
    while True:
        lease = ShardLease(
            flow=flow,
            shard=settings.shard,
            holder=f"{wiring.environment}/{context.aws_request_id}",
            ends_at=began + int(lasts * 1000),
            documents=wiring.documents,
            clock=now_ms,
        )
        run = wiring.run(lease, context.aws_request_id, began, report)
        if not _take(lease, run, ends):
            return {"ended": "held"}
        if run.run(lambda: ends - time.monotonic()).ended != "old format":
            break
    wiring.note(report, began)
    return msgspec.to_builtins(report)  # type: ignore[no-any-return]  # a dataclass becomes a dict


def _take(lease: ShardLease, run: PullRun, ends: float) -> bool:
    """Take the shard now, or once its holder gives way; False where the holder goes on."""
    if lease.take():
        return True
    if not lease.succeeds():
        return False
    run.warm_up(lambda: ends - time.monotonic())
    while time.monotonic() < ends:
        if lease.take():
            return True
        time.sleep(CLAIM_SECONDS)  # between two looks at a condition with a deadline
    return False
