"""The forwarder: the Lambda function that replicates each batch of a Kafka event source mapping exactly once.

Variables:

    MIRRORLESS_FLOW               the flow: mirrorless.flow.settings
    MIRRORLESS_PARTIAL_RESPONSES  `true` where the mapping has ReportBatchItemFailures
    MIRRORLESS_METRICS_PER_TOPIC  `true` emits metrics by topic beside the flow's
    MIRRORLESS_PROFILE            `true` prints a stage profile of each event
"""

from __future__ import annotations

import gc
import json
import os
from typing import Any
from uuid import uuid4

from mirrorless.adapters.aws.metrics import BatchMetrics
from mirrorless.adapters.aws.runtime import fetch_events_directly, hand_events_over_undecoded, keep_memory
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.replicator import flow_replicator
from mirrorless.clock import now_ms
from mirrorless.flow.naming import (
    FLOW_VARIABLE,
    METRICS_PER_TOPIC_VARIABLE,
    PARTIAL_RESPONSES_VARIABLE,
    PROFILE_VARIABLE,
)
from mirrorless.flow.settings import FlowSettings, decode_settings
from mirrorless.protocol import hooks
from mirrorless.protocol.event import decode_event
from mirrorless.protocol.hooks import StageProfile
from mirrorless.protocol.lambda_response import lanes_stopped, lanes_wait, partial_batch_response
from mirrorless.protocol.replicate import Replicator

WARM_UP_SECONDS = 8.0
"""Lambda allows a function 10 s to initialise."""

LEFT_OVER_OBJECTS = 10_000
"""Container objects left over from events before the garbage collector runs."""


def wire(settings: FlowSettings) -> Replicator:
    """Return the replicator of a flow, with its adapters."""
    dynamodb = dynamodb_client(settings.target.region, settings.tables_role, direct=True)
    replicator = flow_replicator(settings, dynamodb, environment=uuid4().hex)
    if settings.oversize == "stop":
        from mirrorless.adapters.kafka.committed_log import KafkaCommittedLog  # noqa: PLC0415  kept out of cold starts
        from mirrorless.protocol.undelivered import UndeliveredRecords  # noqa: PLC0415  the same

        log = KafkaCommittedLog(settings.source, flow=settings.flow)
        replicator.undelivered = UndeliveredRecords(log=log, from_log_start=settings.start == "earliest")
    return replicator


keep_memory()
settings = decode_settings(os.environ.get(FLOW_VARIABLE))
replicator = wire(settings)
partial_responses = os.environ.get(PARTIAL_RESPONSES_VARIABLE) == "true"
per_topic = settings.remote_topic if os.environ.get(METRICS_PER_TOPIC_VARIABLE) == "true" else None
metrics = BatchMetrics(settings.name, per_topic=per_topic)
profile = StageProfile() if os.environ.get(PROFILE_VARIABLE) == "true" else None
if profile is not None:
    hooks.observers.append(profile)
hand_events_over_undecoded()
fetch_events_directly()
replicator.warm_up(WARM_UP_SECONDS)
# The objects of now stay as long as the environment, and an event's ten thousand records have no cycles. So the
# collector runs between events, once enough is left over from earlier ones, instead of many times during each.
gc.freeze()
gc.disable()


def handler(event: Any, context: Any) -> dict[str, Any] | None:
    """Replicate one event.

    Args:
        event: the event's bytes, or what a runtime without our hook made of them.
        context: Lambda's context: the request id and the remaining time.
    """
    received_at = now_ms()
    if gc.get_count()[0] > LEFT_OVER_OBJECTS:
        gc.collect()
    if profile is not None:
        profile.begin()
    batch = decode_event(event)
    if profile is not None:
        profile("decoded")
    outcome = replicator.replicate(
        batch, request=context.aws_request_id, deadline=lambda: context.get_remaining_time_in_millis() / 1000
    )
    metrics.add(batch, outcome, received_at=received_at, now=now_ms())
    if profile is not None:
        profile("reported")
        took = {"profile_ms": profile.milliseconds(), "cpu_ms": profile.cpu_milliseconds()}
        print(json.dumps(took | {"records": sum(map(len, batch.records.values()))}))
    if not outcome.stopped and not outcome.waiting:
        return None
    if partial_responses:
        return partial_batch_response(batch, outcome)
    if not outcome.stopped:
        raise lanes_wait(settings.name, outcome)
    raise lanes_stopped(settings.name, outcome)
