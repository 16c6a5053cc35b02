"""Every metric and every count of a round, by name, in one table: types refuse any other.

What emits them, what alarms and the dashboard read, and what a task reports take their names from here. So does what an
operator sees of a metric: a line of a graph, and an alarm where it needs a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeGuard, get_args

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


WatchGraph = Literal["Tasks", "Groups", "Loss ledger", "Lanes", "Runs in doubt", "Scheduled topics"]


class MetricView(NamedTuple):
    """What an operator sees of a metric that is emitted where it is not zero."""

    graph: WatchGraph
    label: str
    """Of its line."""
    stat: Literal["Maximum", "Sum"] = "Maximum"
    alarm: str = ""
    """The alarm of a metric that needs a person: the end of its section's anchor in the runbook, `alarm-<alarm>`."""
    means: str = ""
    """One sentence; `{flow}` stands for the flow's name."""
    first: str = ""
    """What to do first, likewise."""
    periods: int = 1
    """The newest periods that are looked at."""
    breaching: int | None = None
    """How many of these must be above zero; None: all."""
    period_seconds: int = 60
    task: str = ""
    """Only where this task is on: the beginning of its keys, with underscores for dots."""
    by_rounds: bool = False
    """Whether a period is as long as that task's interval at least."""
    resolves: bool = True
    """Whether the end of the alarm is the end of the trouble. A metric of single events ends by itself."""


WATCHES: Final[Mapping[OfFlow, MetricView]] = {
    "stopped-lanes": MetricView(
        "Lanes",
        "stopped, of one delivery",
        alarm="lane-stopped",
        means="A lane of {flow} is stopped, and waits for you while the source's retention runs.",
        first="mirrorless lanes stopped '{flow}'.",
        # Redeliveries come at Lambda's pace: the alarm ends a quarter of an hour after the last that met the stop.
        periods=15,
        breaching=1,
    ),
    "waiting-lanes": MetricView("Lanes", "waiting for a job, of one delivery"),
    "lanes-stopped": MetricView(
        "Lanes",
        "stopped now by the watch of topics",
        alarm="source-contradicts",
        means="A source topic of {flow} was re-created, truncated or cut below the position; lanes stopped.",
        first="mirrorless lanes stopped '{flow}'.",
        resolves=False,
        stat="Sum",
    ),
    "stuck-partitions": MetricView(
        "Lanes",
        "stuck partitions of the target",
        alarm="partition-stuck",
        means="read_committed readers of a remote partition of {flow} stand before a transaction that hangs.",
        first="mirrorless status '{flow}' names the partition.",
        # The lane check has waited for the transaction's timeout already, once a minute.
        periods=5,
        breaching=3,
    ),
    "lanes-foreign": MetricView(
        "Lanes",
        "with records of another producer",
        alarm="foreign-records",
        means="Another producer writes to a remote topic of {flow}, or did before: readers get both.",
        first="mirrorless status '{flow}' names the topic, the partitions and where it begins.",
        # The lane check has read the records. It ends an hour after the last that was seen.
        periods=5,
        breaching=3,
    ),
    "doubts-open": MetricView(
        "Runs in doubt",
        "open",
        alarm="doubt-open",
        means="A run of {flow} has been in doubt for a quarter of an hour; its lane waits for the answer.",
        first="mirrorless status '{flow}' names the lane and what hides the answer.",
        # A delivery or the lane check settles a doubt within a minute or two of its writer's end.
        periods=15,
    ),
    "offsets-lost": MetricView(
        "Loss ledger",
        "offsets lost",
        alarm="offsets-lost",
        means="Records of {flow} are not on the target, and never will be by themselves.",
        first="mirrorless losses '{flow}' names them and the cause.",
        resolves=False,
        stat="Sum",
    ),
    "gaps-waiting": MetricView("Loss ledger", "gaps to be explained"),
    "task-errors": MetricView("Tasks", "failed rounds", stat="Sum"),
    "task-troubles": MetricView("Tasks", "troubles of a round"),
    "tasks-overdue": MetricView(
        "Tasks",
        "overdue tasks",
        alarm="task-overdue",
        means="A scheduled task of {flow} has not been done for three of its intervals.",
        first="mirrorless status '{flow}' names the task and its error.",
        periods=5,
        breaching=3,
    ),
    "groups-not-ready": MetricView("Groups", "could not move"),
    "groups-need-operator": MetricView(
        "Groups",
        "will not be able to",
        alarm="groups-not-ready",
        means="A consumer group of {flow} has had no exact place on the target for an hour.",
        first="mirrorless groups '{flow}' names it and the reason.",
        # Each round counts the groups anew, and rounds of a flow whose groups rest come once a minute.
        periods=12,
        period_seconds=300,
        task="emit_checkpoints",
    ),
    "reread-records-max": MetricView("Groups", "records that one would read again"),
    "mappings-not-polling": MetricView(
        "Tasks",
        "mappings that do not poll",
        alarm="mapping-fails",
        means="A mapping of {flow} has not polled for a quarter of an hour: its topic waits.",
        first="mirrorless status '{flow}' names the topic, and the state or result of its mapping.",
        # Rounds may be further apart than a minute, and a mapping takes minutes to be created or updated.
        periods=3,
        period_seconds=300,
        task="refresh_topics",
        by_rounds=True,
    ),
    "mappings-refused": MetricView(
        "Tasks",
        "mappings that Lambda refused",
        alarm="mapping-refused",
        means="Lambda refuses a mapping of {flow}: its topic is not replicated, or not as configured.",
        first="mirrorless status '{flow}' has the answer of Lambda under the task topics.",
        periods=3,
        period_seconds=300,
        task="refresh_topics",
        by_rounds=True,
    ),
    "topics-scheduled": MetricView("Scheduled topics", "read by schedule"),
    "topics-returning": MetricView("Scheduled topics", "changing back to mappings"),
}
"""In the order in which alarms are listed, and lines within their graph."""
