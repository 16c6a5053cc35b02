"""The scheduled function of the tasks `topics`, `configs` and `acls`.

A schedule starts it once a minute, and each task runs when it is due. The schedule's input is the whole configuration,
see mirrorless.flow.settings.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any
from uuid import uuid4

import msgspec

from mirrorless.adapters.aws.event_source_mappings import LambdaMappings, lambda_client
from mirrorless.adapters.aws.metrics import emit_report
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.log_epochs import KafkaLogEpochs
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.clock import now_ms
from mirrorless.flow.rate_limit import RateLimit
from mirrorless.flow.settings import FlowSettings, control_settings
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.functions import REFRESH_TOPICS, tasks_of_run
from mirrorless.scheduled.runner import HeldLease, LeasedDocuments, Task, TaskRunner
from mirrorless.topics.acl_sync import AclSync
from mirrorless.topics.change_detection import ChangeDetector
from mirrorless.topics.group_start import GroupStart
from mirrorless.topics.mapping_sync import MappingRefusals, MappingSync
from mirrorless.topics.pause import MappingPause
from mirrorless.topics.refresh import RefusedLanes, RemoteTopicSync, TopicRefresh
from mirrorless.topics.scheduled_topics import ScheduledTopicSync

LEASE_MS = 60_000
"""A round may take most of a minute: a thousand topics are mapped at ten calls a second."""

# Kept from one run to the next. Kafka clients are made for each run: a frozen environment breaks their connections.
dynamodb = cache(dynamodb_client)
aws_lambda = cache(lambda_client)


def documents(settings: FlowSettings) -> DynamoDbDocuments:
    """The documents that the scheduled functions keep between runs."""
    return DynamoDbDocuments(dynamodb(settings.target.region, settings.tables_role), settings.tables.control)


def wire(settings: FlowSettings, lease: HeldLease | None = None) -> list[Task]:
    """The tasks that the settings switch on.

    Args:
        settings: the schedule's input.
        lease: of the run, under which they write their documents; None where no other run is possible.
    """
    tables = settings.tables
    client = dynamodb(settings.target.region, settings.tables_role)
    store = documents(settings)
    control = store if lease is None else LeasedDocuments(store, lease, now_ms)
    source = KafkaTopics(settings.source, flow=settings.flow, role="refresh-source")
    target = KafkaTopics(settings.target, flow=settings.flow, role="refresh-target")
    chains, states = DynamoDbChains(client, tables.offset_map), DynamoDbLaneStates(client, tables.lanes)
    refused = RefusedLanes(settings=settings, target=target, documents=control, states=states, clock=now_ms)
    remote_topics = RemoteTopicSync(settings=settings, source=source, target=target, refused=refused)
    changes = ChangeDetector(
        settings=settings,
        source=source,
        epochs=KafkaLogEpochs(settings.source, flow=settings.flow),
        target=target,
        documents=control,
        chains=chains,
        states=states,
        clock=now_ms,
    )
    start = GroupStart(
        settings=settings,
        source=source,
        source_groups=KafkaGroups(settings.source, flow=settings.flow),
        chains=chains,
        documents=control,
    )
    mappings = mapping_sync(settings, start, control)
    refresh = TopicRefresh(
        settings=settings,
        source=source,
        changes=changes,
        remote_topics=remote_topics,
        refused=refused,
        scheduled=ScheduledTopicSync(flow=settings.name, documents=control, start=start),
        mappings=mappings,
        pause=None
        if mappings is None
        else MappingPause(flow=settings.name, mappings=mappings.mappings, documents=control, clock=now_ms),
    )
    acls = AclSync(
        settings=settings,
        source=KafkaAcls(settings.source, flow=settings.flow),
        target=KafkaAcls(settings.target, flow=settings.flow),
        topics=source.partitions,
        documents=control,
    )
    return tasks_of_run(
        settings,
        {"topics": lambda: refresh.act, "configs": lambda: remote_topics.sync_configs, "acls": lambda: acls.act},
    )


def mapping_sync(settings: FlowSettings, start: GroupStart, control: StateStore) -> MappingSync | None:
    """The sync of event source mappings; None where the flow does not manage them."""
    if not settings.function_name or not settings.mapping_template:
        return None
    rate_limit = RateLimit(per_second=settings.control_calls_per_second, clock=time.monotonic, sleep=time.sleep)
    return MappingSync(
        settings=settings,
        mappings=LambdaMappings(aws_lambda(settings.function_region), settings.function_name, rate_limit),
        start=start,
        documents=control,
        refusals=MappingRefusals(flow=settings.name, documents=control, clock=now_ms),
    )


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Do one run.

    Args:
        event: the schedule's input.
        context: Lambda's context: the request id and the time that is left.

    Returns:
        the last report of each task; empty when another run of the flow is active.
    """
    settings = control_settings(event)
    lease = HeldLease()
    rounds = TaskRunner(
        flow=settings.name,
        function=REFRESH_TOPICS.name,
        documents=documents(settings),
        clock=now_ms,
        sleep=time.sleep,
        holder=f"{context.aws_request_id}/{uuid4().hex}",
        lease=lease,
        lease_ms=LEASE_MS,
        on_report=lambda report: emit_report(settings.name, report),
    )
    reports = rounds.run(
        wire(settings, lease),
        window_seconds=settings.window_seconds,
        deadline=lambda: context.get_remaining_time_in_millis() / 1000,
    )
    return {name: msgspec.to_builtins(report) for name, report in reports.items()}
