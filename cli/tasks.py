"""The scheduled tasks of a flow, with their last reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.functions import IDLE_SECONDS, task_intervals
from mirrorless.scheduled.runner import TaskReport
from mirrorless.scheduled.settings import ControlSettings

MISSED_ROUNDS, GRACE_MS = 3, 120_000
"""A task is overdue when so many of its intervals and this time have passed since it was done. A schedule starts once a
minute, and a run that died is replaced within seconds."""

STUCK = "stuck-partitions"
"""The figure of the task `lanes` that counts target partitions with a transaction that does not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """One task that the flow's settings switch on."""

    task: str
    every_seconds: float
    last: TaskReport | None
    """Its last report; None when it has never been done."""

    def overdue(self, now: int) -> bool:
        """Whether it has not been done for so long that waiting will not help. `now` in ms since the epoch."""
        if self.last is None:
            return False  # a new flow; the table shows `never`
        interval = max(self.every_seconds, IDLE_SECONDS.get(self.task, 0))
        return now - self.last.ok_at > MISSED_ROUNDS * interval * 1000 + GRACE_MS

    @property
    def stuck_partitions(self) -> int:
        """Target partitions whose readers wait behind a transaction that does not end."""
        return self.last.figures.get(STUCK, 0) if self.last is not None else 0


def tasks_of(documents: StateStore, settings: ControlSettings) -> list[TaskStatus]:
    """Every task of a flow that its settings switch on, with its last report.

    Raises:
        Retriable: the store does not answer.
    """
    stored = documents.read(settings.name, "task/").values()
    last = {report.task: report for report in (msgspec.json.decode(text, type=TaskReport) for text in stored)}
    return [
        TaskStatus(task=task, every_seconds=seconds, last=last.get(task))
        for task, seconds in task_intervals(settings).items()
    ]


def tasks_as_json(tasks: Sequence[TaskStatus], now: int) -> list[dict[str, Any]]:
    """Tasks for programs; moments in ms since the epoch, null for a task that was never done."""
    return [
        {
            "task": task.task,
            "every_seconds": task.every_seconds,
            "overdue": task.overdue(now),
            "at": task.last.at if task.last else None,
            "ok_at": (task.last.ok_at or None) if task.last else None,
            "ms": task.last.ms if task.last else None,
            "error": task.last.error if task.last else "",
            "troubles": list(task.last.troubles) if task.last else [],
            "figures": task.last.figures if task.last else {},
        }
        for task in tasks
    ]
