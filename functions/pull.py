"""The scheduled function that reads the topics whose trigger is `schedule`.

A schedule of each shard starts it. The schedule's input is the whole configuration, see mirrorless.scheduled.settings.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.clock import now_ms
from mirrorless.scheduled.functions import shard_task
from mirrorless.scheduled.runner import TaskReport
from mirrorless.scheduled.settings import PullSettings, pull_settings
from mirrorless.topics.scheduled_topics import read_scheduled_topics

dynamodb = cache(dynamodb_client)


def documents(settings: PullSettings) -> DynamoDbDocuments:
    """The documents of the flow."""
    flow = settings.control.flow
    return DynamoDbDocuments(dynamodb(flow.target.region, flow.tables_role), flow.tables.control)


def handler(event: Any, context: Any) -> dict[str, Any]:  # noqa: ARG001 -- Lambda's
    """Do one run of a shard.

    Args:
        event: the schedule's input.
        context: Lambda's context.

    Returns:
        the topics that the flow's shards read, with the numbers of their partitions.
    """
    settings = pull_settings(event)
    began, flow, store = now_ms(), settings.control.name, documents(settings)
    topics = read_scheduled_topics(store, flow)
    ended = now_ms()
    report = TaskReport(task=shard_task(settings.shard), at=ended, ms=ended - began, ok_at=ended)
    store.write(flow, {f"task/{report.task}": msgspec.json.encode(report)})
    return {"topics": topics}
