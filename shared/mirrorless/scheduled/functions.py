"""The scheduled functions and their tasks, for the deployment, the lab and the command line.

A run may take longer than the minute after which the next one starts: a lease (`mirrorless.scheduled.runner`) allows
one run at a time, and the next one waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from mirrorless.flow.naming import PULL
from mirrorless.scheduled.runner import MINUTE, TaskReport
from mirrorless.scheduled.settings import ControlSettings

LONGEST_INPUT: Final = 256 * 1024
"""Bytes of a schedule's input at most (https://docs.aws.amazon.com/scheduler/latest/UserGuide/encryption-rest.html)."""

ScheduledName = Literal["control", "refresh_topics"]
"""A file in `functions/`, without `.py`."""

LANES_SECONDS: Final = MINUTE
"""Between two checks of the lanes; no setting changes it."""

IDLE_SECONDS: Final[Mapping[str, float]] = {"checkpoints": MINUTE, "offset-syncs": MINUTE}
"""The intervals of tasks while nothing moves, where they are longer than what is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFunction:
    """A function that a flow's schedules start.

    Attributes:
        name: its file in `functions/`, without `.py`.
        description: what it does, for the console.
        memory_mb: memory.
        timeout_seconds: of one run.
        tasks: the names of its tasks, see `task_intervals`.
    """

    name: ScheduledName
    description: str
    memory_mb: int
    timeout_seconds: int
    tasks: tuple[str, ...]

    def has_work(self, settings: ControlSettings) -> bool:
        """Whether any of its tasks is on: without one, the function needs no schedule."""
        return not task_intervals(settings).keys().isdisjoint(self.tasks)


CONTROL: Final = ScheduledFunction(
    name="control",
    description="heartbeats, checkpoints and group offsets, and the check of the lanes",
    memory_mb=256,
    timeout_seconds=120,
    tasks=("heartbeats", "checkpoints", "offset-syncs", "lanes"),
)

REFRESH_TOPICS: Final = ScheduledFunction(
    name="refresh_topics",
    description="finds topics, and keeps remote topics, their configs, their ACLs and the mappings in step",
    memory_mb=256,
    timeout_seconds=120,
    tasks=("topics", "configs", "acls"),
)

SCHEDULED: Final = (CONTROL, REFRESH_TOPICS)

CONFIGS_SECONDS: Final = 600
"""Between looks at the configs of remote topics where they are not synchronised."""

PULL_TIMEOUT_SECONDS: Final = 840
"""Of a run that reads scheduled topics. It ends on its own before: a continuous one hands over to the next run."""


def shard_task(shard: int) -> str:
    """The name under which a run of a shard stores its report, as the tasks of the other functions do: `pull-0`."""
    return f"{PULL}-{shard}"


def task_intervals(settings: ControlSettings) -> dict[str, float]:
    """The interval in seconds of each task that the settings switch on.

    The check of the lanes is always on: it settles runs that a crash left in doubt, and renews the heads of the map.
    """
    # A remote topic that rewrites records is found where its configs are the operator's, too.
    looked_at = None if settings.refresh_topics_seconds is None else CONFIGS_SECONDS
    intervals = {
        "heartbeats": settings.heartbeats_seconds,
        "checkpoints": settings.checkpoints_seconds,
        "offset-syncs": settings.checkpoints_seconds if settings.offset_syncs else None,
        "lanes": LANES_SECONDS,
        "topics": settings.refresh_topics_seconds,
        "configs": settings.sync_topic_configs_seconds or looked_at,
        "acls": settings.sync_topic_acls_seconds,
    }
    return {task: seconds for task, seconds in intervals.items() if seconds is not None}


MISSED_ROUNDS: Final = 3
GRACE_MS: Final = 120_000
"""A task is overdue when so many of its intervals and this time have passed since it was done. A schedule starts once a
minute, and a run that died is replaced within seconds."""


def is_overdue(task: str, every_seconds: float, done_at: int, now: int) -> bool:
    """Whether a task has not been done for so long that waiting will not help.

    Args:
        task: its name.
        every_seconds: its interval.
        done_at: when it last ended without an error, or began to fail, ms since the epoch.
        now: ms since the epoch.
    """
    interval = max(every_seconds, IDLE_SECONDS.get(task, 0))
    return now - done_at > MISSED_ROUNDS * interval * 1000 + GRACE_MS


def overdue_tasks(settings: ControlSettings, reports: Mapping[str, TaskReport], now: int) -> dict[str, str]:
    """The overdue tasks of a flow, each with the error of its last round; empty for a task that does not end or begin.

    A task that has never been done counts from its first round; one without a report, whose function has never come to
    its end, from the first report of any other.

    Args:
        settings: the flow's.
        reports: the last report of each task.
        now: ms since the epoch.
    """
    began = min((report.first_at for report in reports.values() if report.first_at), default=now)
    found = {}
    for task, every_seconds in task_intervals(settings).items():
        last = reports.get(task)
        if is_overdue(task, every_seconds, began if last is None else max(last.ok_at, last.first_at), now):
            found[task] = "" if last is None else last.error
    return found
