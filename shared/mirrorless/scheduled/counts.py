"""Every metric and every count of a round, by name, in one table: types refuse any other.

What emits them, what alarms and the dashboard read, and what a task reports take their names from here.
"""

from __future__ import annotations

from typing import Final, Literal, TypeGuard, get_args

Watched = Literal[
    "task-errors",
    "task-troubles",
    "heartbeats-emitted",
    "groups-not-ready",
    "groups-need-operator",
    "reread-records-max",
    "doubts-open",
    "stuck-partitions",
    "gaps-waiting",
    "offsets-lost",
    "lanes-stopped",
    "stopped-lanes",
    "lanes-foreign",
    "mappings-refused",
    "mappings-not-polling",
    "topics-scheduled",
    "topics-returning",
]
"""What alarms and the dashboard read: a metric where it is not zero, paid for by the hour."""

Logged = Literal[
    "acls-created",
    "acls-deleted",
    "acls-disabled",
    "acls-left",
    "acls-staged",
    "checkpoints-emitted",
    "configs-altered",
    "doubts-settled",
    "groups",
    "heads-renewed",
    "lanes-checked",
    "lanes-tried-again",
    "lanes-waiting",
    "logs-parted",
    "mappings-created",
    "mappings-deleted",
    "mappings-pending",
    "mappings-updated",
    "offset-syncs-emitted",
    "offsets-committed",
    "offsets-explained",
    "partitions",
    "pull-bytes",
    "pull-bytes-passed",
    "pull-failures",
    "pull-lanes",
    "pull-limited-ms",
    "pull-records",
    "pull-transactions",
    "topics",
    "topics-altered",
    "topics-compared",
    "topics-created",
    "topics-gone",
    "topics-grown",
    "topics-recreated",
    "topics-refused",
    "topics-rewriting",
]
"""What stands in the line of a round, for Logs Insights and `mirrorless status`."""

Count = Watched | Logged
"""What a task may report of a round."""

OfBatches = Literal[
    "record-count",
    "byte-count",
    "passed-byte-count",
    "returned-count",
    "filtered-count",
    "heartbeats-arrived",
    "produce-throttle-time-max",
    "stopped-lanes",
    "waiting-lanes",
    "record-age-ms-max",
    "replication-latency-ms-max",
]
"""Of a flow's batches, and where that is wanted of each topic's."""

OfTopics = OfBatches | Literal["record-age-ms-min", "replication-latency-ms-min"]

OfFlow = Watched | OfBatches | Literal["tasks-overdue", "home-silent"]
"""Every metric of a flow."""

OfJob = Literal["job-records", "job-bytes", "job-lanes-left", "job-lanes-stopped", "job-needs-operator"]

WATCHED: Final[frozenset[Watched]] = frozenset(get_args(Watched))


def is_watched(name: str) -> TypeGuard[Watched]:
    """Whether a count is a metric too."""
    return name in WATCHED
