"""How does the state of a flow look to programs? Moments in ms since the epoch; null for not known, or nothing yet."""

from __future__ import annotations

from typing import Any

import msgspec

from cli.lanes import stop_as_json
from cli.scheduled import tasks_as_json
from cli.status_view import FlowStatus, LaneStatus, TopicStatus


def as_json(status: FlowStatus) -> dict[str, Any]:
    """One flow, always with every partition."""
    return {
        "flow": str(status.flow),
        "at": status.at,
        "needs_operator": status.needs_operator,
        "source_reachable": not status.trouble,
        "source_trouble": status.trouble,
        "unlisted_patterns": list(status.unlisted),
        "topics": [_topic(topic, status.at) for topic in status.topics],
        "heartbeats": status.heartbeats.as_json(),
        "groups": [
            {
                "group": group.group,
                "readiness": group.readiness,
                "by": group.by,
                "reread": group.reread,
                "ahead": group.ahead,
                "at": group.at,
            }
            for group in status.groups
        ],
        "tasks": tasks_as_json(status.tasks, status.at),
    }


def _topic(status: TopicStatus, now: int) -> dict[str, Any]:
    return {
        "topic": status.topic,
        "remote_topic": status.remote_topic,
        "mapping": None if status.mapping is None else msgspec.to_builtins(status.mapping),
        "partitions": [_lane(lane, now) for lane in status.lanes],
    }


def _lane(status: LaneStatus, now: int) -> dict[str, Any]:
    lease = status.leased(now)
    return {
        "partition": status.lane.partition,
        "generation": status.head.generation,
        "position": status.head.position,
        "source_start": status.source.start if status.source else None,
        "source_end": status.source.end if status.source else None,
        "lag": status.lag,
        "lag_seconds": None if status.lag_ms is None else status.lag_ms / 1000,
        "replication_latency_ms": status.latency_ms,
        "overtaken": status.overtaken,
        "source_ends_below_position": status.shrunk,
        "in_doubt": status.head.in_doubt,
        "last_run_at": status.last_run_at,
        "stop": stop_as_json(status.lane, status.stop) if status.stop else None,
        "lease": {"holder": lease.holder, "until": lease.until} if lease else None,
        "waits_for_a_job_from": status.waiting if lease or status.waits_for_nobody(now) else None,
        "lost": status.lost,
        "gaps_in_newest_runs": status.gaps,
    }
