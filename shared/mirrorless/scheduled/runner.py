"""Which task is due, and how did it go? A scheduled run does each of its tasks at that task's own interval.

EventBridge starts a function once a minute at most. Inside the minute the run goes on in rounds, so that heartbeats and
checkpoints may be seconds apart. A run whose tasks are all due less often than that ends after one round.

A task that fails does not keep the others from their work: what it says is kept where `mirrorless status` reads it,
counted by an alarm, and it is tried again at its next round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirrorless.errors import MirrorlessError
from mirrorless.lane import FlowName
from mirrorless.ports.kafka import Deadline
from mirrorless.ports.stores import StateStore

LEASE_MS: Final = 15_000
"""A run that died is replaced after this long. A living one renews its lease in time, before a round."""

WRITE_EVERY_MS: Final = 5_000
"""Between two writes of a report in which nothing changed but the time; between two renewals of the lease."""

CLAIM_EVERY_SECONDS: Final = 0.5
"""Between two tries to take over from the run of the minute before."""

NEAR_SECONDS: Final = 2.0
"""What is kept of Lambda's deadline to write the last report."""


@dataclass(slots=True, kw_only=True)
class RoundReport:
    """What a round found, for people and for alarms. A task fills it in while it works."""

    figures: dict[str, int] = field(default_factory=dict)
    """Counts by metric name, such as `checkpoints-emitted`."""
    troubles: list[str] = field(default_factory=list)
    """What the operator should know, one sentence each, with its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One duty of a scheduled function."""

    name: str
    """Such as `checkpoints`."""
    every_seconds: float
    act: Callable[[RoundReport, Deadline], None]
    """One round. Raises MirrorlessError when it could not be done; whatever else it raises ends the run."""


class TaskReport(msgspec.Struct, frozen=True):
    """How a task's last round went; the document `task/<name>`."""

    task: str
    at: int
    """When the round ended, ms since the epoch."""
    ms: int
    """How long it took."""
    ok_at: int = 0
    """When a round last ended without an error, ms since the epoch; 0 for never."""
    error: str = ""
    """What the round raised; empty when it was done."""
    troubles: tuple[str, ...] = ()
    figures: dict[str, int] = {}


@dataclass(slots=True, kw_only=True)
class TaskRunner:
    """Runs tasks under a lease, so that there is one run per flow and function at a time. For one run."""

    flow: FlowName
    function: str
    documents: StateStore
    clock: Callable[[], int]
    """ms since the epoch."""
    sleep: Callable[[float], None]
    holder: str
    """Unique to this run."""
    lease_ms: int = LEASE_MS
    on_report: Callable[[TaskReport], None] = lambda _report: None
    """Told after each round: where metrics and logs are written."""
    _held_until: int = 0
    _reports: dict[str, TaskReport] = field(default_factory=dict)
    _written: dict[str, TaskReport] = field(default_factory=dict)

    def run(self, tasks: Sequence[Task], *, window_seconds: float, deadline: Deadline) -> dict[str, TaskReport]:
        """Do the tasks that are due until the window ends.

        Returns:
            the last report of each task that was done, by its name; nothing when another run is at work.

        Raises:
            Retriable: when the store of documents does not answer.
        """
        end = self.clock() + int(min(window_seconds, deadline() - NEAR_SECONDS) * 1000)
        while not self._hold():
            if self.clock() >= end:
                return {}
            self.sleep(CLAIM_EVERY_SECONDS)
        try:
            return self._rounds(tasks, end, deadline)
        finally:
            self.documents.release(self.flow, self._lease, holder=self.holder)

    def _rounds(self, tasks: Sequence[Task], end: int, deadline: Deadline) -> dict[str, TaskReport]:
        stored = self.documents.read(self.flow, "task/").values()
        last = {report.task: report for report in (msgspec.json.decode(text, type=TaskReport) for text in stored)}
        due = {task.name: _next(task, last.get(task.name)) for task in tasks}
        self._written = dict(last)
        try:
            while True:
                for task in tasks:
                    if self.clock() < due[task.name]:
                        continue
                    if not self._hold():
                        return self._reports  # a run that took us for dead goes on in our place
                    due[task.name] = self.clock() + int(task.every_seconds * 1000)
                    self._do(task, last.get(task.name), deadline)
                    last[task.name] = self._reports[task.name]
                soonest = min(due.values(), default=end)
                if soonest >= end or self.clock() >= end:
                    return self._reports
                self.sleep(max(0.0, (soonest - self.clock()) / 1000))
        finally:
            self._write(self._reports)

    def _do(self, task: Task, last: TaskReport | None, deadline: Deadline) -> None:
        """One round of one task, and what is told of it."""
        report, began, error = RoundReport(), self.clock(), ""

        def in_time() -> float:
            # What a round does after its lease has ended could undo a successor's work.
            return min(deadline(), (self._held_until - self.clock()) / 1000)

        try:
            task.act(report, in_time)
        except MirrorlessError as exc:
            error = str(exc)
        ended = self.clock()
        told = TaskReport(
            task=task.name,
            at=ended,
            ms=ended - began,
            ok_at=(last.ok_at if last is not None else 0) if error else ended,
            error=error,
            troubles=tuple(report.troubles),
            figures=report.figures,
        )
        self._reports[task.name] = told
        written = self._written.get(task.name)
        if (
            written is None
            or (told.error, told.troubles) != (written.error, written.troubles)
            or told.at >= written.at + WRITE_EVERY_MS
        ):
            self._write({task.name: told})
        self.on_report(told)

    def _write(self, reports: Mapping[str, TaskReport]) -> None:
        news = {name: report for name, report in reports.items() if self._written.get(name) != report}
        if news:
            self.documents.write(
                self.flow, {f"task/{name}": msgspec.json.encode(report) for name, report in news.items()}
            )
        self._written |= news

    def _hold(self) -> bool:
        """Take the lease, or renew it where a third of it has passed."""
        now = self.clock()
        if now < self._held_until - 2 * self.lease_ms // 3:
            return True
        held = self.documents.claim(self.flow, self._lease, holder=self.holder, now=now, until=now + self.lease_ms)
        self._held_until = now + self.lease_ms if held else 0
        return held

    @property
    def _lease(self) -> str:
        return lease(self.function)


def lease(function: str) -> str:
    """The key of the lease under which a flow's runs of a function work."""
    return f"lease/{function}"


def _next(task: Task, last: TaskReport | None) -> int:
    """When a task is due that may have been done by an earlier run, ms since the epoch."""
    return 0 if last is None else last.at - last.ms + int(task.every_seconds * 1000)
