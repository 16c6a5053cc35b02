"""The counts of rounds: every name that a task may report, in one table. Types refuse any other."""

from __future__ import annotations

from typing import Final, Literal, get_args

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

WATCHED: Final = frozenset(get_args(Watched))
