"""Scheduled tasks that have not been done for three of their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mirrorless.scheduled.functions import IDLE_SECONDS, task_intervals
from mirrorless.scheduled.runner import TaskReport
from mirrorless.scheduled.settings import ControlSettings

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
