"""The scheduled functions and their tasks, for the deployment, the lab and the command line.

A run may take longer than the minute after which the next one starts: a lease (`mirrorless.scheduled.runner`) allows
one run at a time, and the next one waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from mirrorless.flow.naming import PULL
from mirrorless.flow.settings import FlowSettings
from mirrorless.scheduled.runner import MINUTE, Task, TaskAct, TaskReport

LONGEST_INPUT: Final = 256 * 1024
"""Bytes of a schedule's input at most (https://docs.aws.amazon.com/scheduler/latest/UserGuide/encryption-rest.html)."""

ScheduledName = Literal["control", "refresh_topics"]
"""A file in `functions/`, without `.py`."""

LANES_SECONDS: Final = MINUTE
"""Between two checks of the lanes; no setting changes it."""

CONFIGS_SECONDS: Final = 600
"""Between looks at the configs of remote topics where they are not synchronised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTask:
    """A task of a scheduled function.

    Attributes:
        function: whose rounds do it.
        seconds: its interval by the settings; None where they switch it off.
        idle_seconds: its interval while nothing moves, where that is longer.
    """

    function: ScheduledName
    seconds: Callable[[FlowSettings], float | None]
    idle_seconds: float = 0


def every(key: str) -> Callable[[FlowSettings], float | None]:
    """The interval that two keys set: `KEY.enabled` and `KEY.interval.seconds`, with underscores for dots."""

    def seconds(settings: FlowSettings) -> float | None:
        interval: float = getattr(settings, f"{key}_interval_seconds")
        return interval if getattr(settings, f"{key}_enabled") else None

    return seconds


def _offset_syncs(settings: FlowSettings) -> float | None:
    return every("emit_checkpoints")(settings) if settings.emit_offset_syncs_enabled else None


def _configs(settings: FlowSettings) -> float | None:
    """A remote topic that rewrites records is found where its configs are the operator's, too."""
    return every("sync_topic_configs")(settings) or (CONFIGS_SECONDS if settings.refresh_topics_enabled else None)


TASKS: Final[Mapping[str, ScheduledTask]] = {
    "heartbeats": ScheduledTask(function="control", seconds=every("emit_heartbeats")),
    "checkpoints": ScheduledTask(function="control", seconds=every("emit_checkpoints"), idle_seconds=MINUTE),
    "offset-syncs": ScheduledTask(function="control", seconds=_offset_syncs, idle_seconds=MINUTE),
    # Always on: it settles runs that a crash left in doubt, and renews the heads of the map.
    "lanes": ScheduledTask(function="control", seconds=lambda _: LANES_SECONDS),
    "topics": ScheduledTask(function="refresh_topics", seconds=every("refresh_topics")),
    "configs": ScheduledTask(function="refresh_topics", seconds=_configs),
    "acls": ScheduledTask(function="refresh_topics", seconds=every("sync_topic_acls")),
}
"""Every task, in the order in which a function does them."""


def task_intervals(settings: FlowSettings) -> dict[str, float]:
    """The interval in seconds of each task that the settings switch on."""
    intervals = {name: task.seconds(settings) for name, task in TASKS.items()}
    return {name: seconds for name, seconds in intervals.items() if seconds is not None}


def tasks_of_run(settings: FlowSettings, makers: Mapping[str, Callable[[], TaskAct]]) -> list[Task]:
    """The tasks of one run of a function, of those that the settings switch on. Args: makers: of each task's rounds."""
    return [
        Task(name=name, every_seconds=seconds, idle_seconds=TASKS[name].idle_seconds, act=makers[name]())
        for name, seconds in task_intervals(settings).items()
        if name in makers
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFunction:
    """A function that a flow's schedules start.

    Attributes:
        name: its file in `functions/`, without `.py`.
        description: what it does, for the console.
        memory_mb: memory.
        timeout_seconds: of one run.
    """

    name: ScheduledName
    description: str
    memory_mb: int
    timeout_seconds: int

    def has_work(self, settings: FlowSettings) -> bool:
        """Whether any of its tasks is on: without one, the function needs no schedule."""
        return any(TASKS[name].function == self.name for name in task_intervals(settings))


CONTROL: Final = ScheduledFunction(
    name="control",
    description="heartbeats, checkpoints and group offsets, and the check of the lanes",
    memory_mb=256,
    timeout_seconds=120,
)

REFRESH_TOPICS: Final = ScheduledFunction(
    name="refresh_topics",
    description="finds topics, and keeps remote topics, their configs, their ACLs and the mappings in step",
    memory_mb=256,
    timeout_seconds=120,
)

SCHEDULED: Final = (CONTROL, REFRESH_TOPICS)

PULL_TIMEOUT_SECONDS: Final = 840
"""Of a run that reads scheduled topics. It ends on its own before: a continuous one hands over to the next run."""


def shard_task(shard: int) -> str:
    """The name under which a run of a shard stores its report, as the tasks of the other functions do: `pull-0`."""
    return f"{PULL}-{shard}"


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
    idle_seconds = TASKS[task].idle_seconds if task in TASKS else 0
    return now - done_at > MISSED_ROUNDS * max(every_seconds, idle_seconds) * 1000 + GRACE_MS


def overdue_tasks(settings: FlowSettings, reports: Mapping[str, TaskReport], now: int) -> dict[str, str]:
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
