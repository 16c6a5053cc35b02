"""The refresh of topics: a schedule starts it every minute, and each of its tasks is done when it is due.

Tasks: `topics`, `configs` and `acls`. The schedule's input is all that it knows, see
mirrorless.scheduled.settings.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any
from uuid import uuid4

import msgspec

from mirrorless.adapters.aws.event_source_mappings import CALLS_PER_SECOND, LambdaMappings, lambda_client
from mirrorless.adapters.aws.task_metrics import emit_report
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.scheduled.rate_limit import RateLimit
from mirrorless.scheduled.runner import Rounds, Task
from mirrorless.scheduled.settings import ControlSettings, control_settings
from mirrorless.topics.acl_sync import AclSync
from mirrorless.topics.change_detection import Lookout
from mirrorless.topics.mapping_sync import MappingSync
from mirrorless.topics.refresh import TopicRefresh
from mirrorless.topics.remote_topics import RemoteShapes

LEASE_MS = 60_000
"""A round may take most of a minute: a thousand topics are mapped at ten calls a second."""

# Warm from one run to the next; clients of Kafka are made anew, since a minute in the freezer breaks what they hold.
dynamodb = cache(dynamodb_client)
aws_lambda = cache(lambda_client)


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def documents(settings: ControlSettings) -> DynamoDbDocuments:
    """What the scheduled functions know from one run to the next."""
    flow = settings.flow
    return DynamoDbDocuments(dynamodb(flow.target.region, flow.tables_role), flow.tables.control)


def wire(settings: ControlSettings) -> list[Task]:
    """What this function does; an interval of None switches a task off."""
    flow, tables = settings.flow, settings.flow.tables
    store = dynamodb(flow.target.region, flow.tables_role)
    known = documents(settings)
    source = KafkaTopics(flow.source, flow=flow.flow, role="refresh-source")
    target = KafkaTopics(flow.target, flow=flow.flow, role="refresh-target")
    shapes = RemoteShapes(settings=settings, source=source, target=target)
    lookout = Lookout(
        settings=settings,
        source=source,
        documents=known,
        chains=DynamoDbChains(store, tables.offset_map),
        states=DynamoDbLaneStates(store, tables.lanes),
        clock=now,
    )
    refresh = TopicRefresh(
        settings=settings, source=source, lookout=lookout, shapes=shapes, mappings=mapping_sync(settings, known)
    )
    acls = AclSync(
        settings=settings,
        source=KafkaAcls(flow.source, flow=flow.flow),
        target=KafkaAcls(flow.target, flow=flow.flow),
        topics=source.partitions,
        documents=known,
    )
    duties = (
        ("topics", settings.refresh_topics_seconds, refresh.act),
        ("configs", settings.sync_topic_configs_seconds, shapes.sync_configs),
        ("acls", settings.sync_topic_acls_seconds, acls.act),
    )
    return [Task(name=name, every_seconds=every, act=act) for name, every, act in duties if every is not None]


def mapping_sync(settings: ControlSettings, known: DynamoDbDocuments) -> MappingSync | None:
    """The sync of event source mappings, if they are ours to manage."""
    if not settings.function_name or not settings.mapping:
        return None
    throttle = RateLimit(per_second=CALLS_PER_SECOND, clock=time.monotonic, sleep=time.sleep)
    return MappingSync(
        settings=settings,
        mappings=LambdaMappings(aws_lambda(settings.function_region), settings.function_name, throttle),
        source_groups=KafkaGroups(settings.flow.source, flow=settings.flow.flow),
        documents=known,
    )


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Do what is due.

    Args:
        event: the schedule's input.
        context: Lambda's context: the request id and the time that is left.

    Returns:
        the last report of each task; empty when another run of the flow is at work.
    """
    settings = control_settings(event)
    rounds = Rounds(
        flow=settings.name,
        function="refresh_topics",
        documents=documents(settings),
        clock=now,
        sleep=time.sleep,
        holder=f"{context.aws_request_id}/{uuid4().hex}",
        lease_ms=LEASE_MS,
        on_report=lambda report: emit_report(settings.name, report),
    )
    reports = rounds.run(
        wire(settings),
        window_seconds=settings.window_seconds,
        deadline=lambda: context.get_remaining_time_in_millis() / 1000,
    )
    return {name: msgspec.to_builtins(report) for name, report in reports.items()}
