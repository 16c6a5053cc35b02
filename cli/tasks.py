"""The scheduled tasks of a flow, with their last reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.counts import Count
from mirrorless.scheduled.functions import is_overdue, shard_task, task_intervals
from mirrorless.scheduled.runner import MINUTE, TaskReport

if TYPE_CHECKING:
    from mirrorless.config import Flow

URGENT: Final[tuple[Count, ...]] = ("stuck-partitions", "lanes-foreign", "topics-rewriting")
"""Figures of tasks whose troubles need the operator: target partitions with a transaction that does not end, lanes to
whose remote partitions another producer writes, remote topics that replace the times of records."""


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
        return is_overdue(self.task, self.every_seconds, self.last.ok_at, now)

    @property
    def needs_operator(self) -> bool:
        """Whether what its last round has found will not pass by itself."""
        return self.last is not None and any(self.last.counts.get(name, 0) for name in URGENT)


def tasks_of(documents: StateStore, settings: FlowSettings) -> list[TaskStatus]:
    """Every task of a flow that its settings switch on, with its last report.

    Raises:
        Retriable: the store does not answer.
    """
    last = _last_reports(documents, settings.name)
    return [
        TaskStatus(task=task, every_seconds=seconds, last=last.get(task))
        for task, seconds in task_intervals(settings).items()
    ]


def shards_of(documents: StateStore, flow: Flow) -> list[TaskStatus]:
    """The shards of a flow's scheduled topics, each with the report of its last run; none without such topics.

    Raises:
        Retriable: the store does not answer.
    """
    if not flow.has_pull:
        return []
    schedule = flow.settings.schedule
    every = MINUTE if schedule.continuous else schedule.interval_seconds
    last = _last_reports(documents, flow.name)
    names = map(shard_task, range(schedule.shards))
    return [TaskStatus(task=name, every_seconds=every, last=last.get(name)) for name in names]


def _last_reports(documents: StateStore, flow: FlowName) -> dict[str, TaskReport]:
    stored = documents.read(flow, "task/").values()
    return {report.task: report for report in (msgspec.json.decode(text, type=TaskReport) for text in stored)}
