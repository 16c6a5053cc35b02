"""The runner of scheduled tasks: each task at its own interval, under a lease.

EventBridge starts a function once a minute at most. Within the minute a run does several rounds, so that checkpoints
can be seconds apart. A task in whose rounds nothing has moved for some minutes comes once a minute. A run ends when
nothing more is due in its minute, and so an idle flow is billed for one round a minute.

A task that fails does not stop the others: its error is stored where `mirrorless status` reads it, counted by an alarm,
and the task runs again in its next round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import LeaseLost, MirrorlessError
from mirrorless.flow.counts import Count
from mirrorless.flow.settings import IDLE_AFTER_SECONDS
from mirrorless.ports.stores import StateStore

LONGEST_MS: Final = 20 * 60_000
"""More than Lambda lets a run last. A lease that ends later has a holder whose clock is ahead: were that run killed, it
would stand for as long."""


@dataclass(slots=True)
class HeldLease:
    """The lease of one run. The runner takes and renews it."""

    epoch: int = 0
    until: int = 0
    """ms since the epoch of clocks; 0 while it is not held."""


@dataclass(frozen=True, slots=True)
class LeasedDocuments:
    """Implements `mirrorless.ports.stores.StateStore` for the tasks of one run: its writes need the run's lease."""

    documents: StateStore
    lease: HeldLease
    clock: Callable[[], int]
    """ms since the epoch."""

    def read(self, flow: FlowName, prefix: str) -> dict[str, bytes]:
        """See `StateStore.read`."""
        return self.documents.read(flow, prefix)

    def write(self, flow: FlowName, documents: Mapping[str, bytes], *, epoch: int | None = None) -> None:
        """See `StateStore.write`. Without an epoch, it is the lease's."""
        self.documents.write(flow, documents, epoch=self._epoch(flow) if epoch is None else epoch)

    def delete(self, flow: FlowName, key: str, *, epoch: int | None = None) -> None:
        """See `StateStore.delete`. Without an epoch, it is the lease's."""
        self.documents.delete(flow, key, epoch=self._epoch(flow) if epoch is None else epoch)

    def claim(
        self, flow: FlowName, key: str, *, holder: str, now: int, until: int, longest: int | None = None
    ) -> int | None:
        """See `StateStore.claim`."""
        return self.documents.claim(flow, key, holder=holder, now=now, until=until, longest=longest)

    def release(self, flow: FlowName, key: str, *, holder: str) -> None:
        """See `StateStore.release`."""
        self.documents.release(flow, key, holder=holder)

    def _epoch(self, flow: FlowName) -> int:
        """Raises LeaseLost after the lease's end."""
        if self.clock() >= self.lease.until:
            raise LeaseLost("the run's lease is over, and nothing was written", where=str(flow))
        return self.lease.epoch


LEASE_MS: Final = 45_000
"""A run that died is replaced after this time. It outlasts a round: one of 5,000 lanes takes 25 to 37 s at 256 MB."""

RENEW_AFTER_MS: Final = 5_000
"""Between two renewals of the lease, which come before rounds."""

WRITE_EVERY_MS: Final = 5_000
"""Between two writes of a report in which only the time has changed."""

TROUBLES: Final = 1_000
"""Sentences in a document, whose number grows with lanes; the log has all."""

SOON_SECONDS: Final = 3.0
"""Between two rounds of which the first missed what is just being made."""

CLAIM_EVERY_SECONDS: Final = 0.5
"""Between two tries to take over from the run of the minute before."""

MINUTE: Final = 60.0
"""EventBridge Scheduler's shortest interval (https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html)."""

NEAR_SECONDS: Final = 2.0
"""Reserved of Lambda's deadline to write the last report."""


@dataclass(slots=True, kw_only=True)
class RoundReport:
    """The findings of a round, for the operator and for alarms. The task fills it in."""

    counts: dict[Count, int] = field(default_factory=dict)
    """By name."""
    troubles: list[str] = field(default_factory=list)
    """Problems for the operator, one sentence each, with its location."""
    moved: bool = False
    """Whether it found anything new."""
    rest_seconds: float = 0
    """Until the next round at least: what this one has read is paid for."""
    comes_soon: bool = False
    """Whether what it missed is just being made: while a flow begins, the next round looks again at once."""


TaskAct = Callable[[RoundReport, Deadline], None]
"""One round. A MirrorlessError fails the round; any other exception ends the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of a scheduled function."""

    name: str
    """Such as `checkpoints`."""
    every_seconds: float
    idle_seconds: float = 0
    """Its interval while nothing moves, where that is longer."""
    act: TaskAct


class TaskReport(msgspec.Struct, frozen=True):
    """The result of a task's last round; the document `task/<name>`."""

    task: str
    at: int
    """When the round ended, ms since the epoch."""
    ms: int
    """Its duration."""
    first_at: int = 0
    """When its first round ended, ms since the epoch; 0 where that is not stored."""
    ok_at: int = 0
    """When a round last ended without an error, ms since the epoch; 0 for never."""
    ok_ms: int = 0
    """The duration of that round: what it has seen is so old at least."""
    moved_at: int = 0
    """When a round last found anything new, ms since the epoch; the first round counts as one."""
    rests_until: int = 0
    """Before which its next round does not begin, ms since the epoch."""
    error: str = ""
    """The error of the round; empty for none."""
    troubles: tuple[str, ...] = ()
    counts: dict[str, int] = msgspec.field(default_factory=dict, name="figures")
    """Those of `RoundReport`, by names of whichever version wrote it."""


@dataclass(slots=True, kw_only=True)
class TaskRunner:
    """Runs tasks under a lease, so that one run per flow and function is active at a time. For one run."""

    flow: FlowName
    function: str
    documents: StateStore
    clock: Callable[[], int]
    """ms since the epoch."""
    sleep: Callable[[float], None]
    holder: str
    """Unique to this run."""
    lease: HeldLease = field(default_factory=HeldLease)
    """That of this run, for the documents of its tasks."""
    lease_ms: int = LEASE_MS
    idle_after_seconds: float = IDLE_AFTER_SECONDS
    on_report: Callable[[TaskReport], None] = lambda _report: None
    """Called after each round: writes metrics and logs."""
    on_start: Callable[[Mapping[str, TaskReport]], None] = lambda _reports: None
    """Called once, with the stored report of every task of the flow, before the first round of a run."""
    _reports: dict[str, TaskReport] = field(default_factory=dict)
    _written: dict[str, TaskReport] = field(default_factory=dict)
    _soon: set[str] = field(default_factory=set)
    """Tasks whose next round comes after `SOON_SECONDS`."""

    def run(self, tasks: Sequence[Task], *, window_seconds: float, deadline: Deadline) -> dict[str, TaskReport]:
        """Run the tasks that are due until the window ends.

        Returns:
            the last report of each task that ran, by its name; empty when another run is active.

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
            self.documents.release(self.flow, lease(self.function), holder=self.holder)

    def _rounds(self, tasks: Sequence[Task], end: int, deadline: Deadline) -> dict[str, TaskReport]:
        stored = self.documents.read(self.flow, "task/").values()
        last = {report.task: report for report in (msgspec.json.decode(text, type=TaskReport) for text in stored)}
        self.on_start(last)
        due = {task.name: self._next(task, last.get(task.name)) for task in tasks}
        self._written = dict(last)
        try:
            while True:
                for task in tasks:
                    if self.clock() < due[task.name]:
                        continue
                    if not self._hold():
                        return self._reports  # another run has taken over the lease
                    began = self.clock()
                    self._do(task, last.get(task.name), deadline)
                    last[task.name] = report = self._reports[task.name]
                    seconds = SOON_SECONDS if task.name in self._soon else self._interval(task, report)
                    due[task.name] = max(report.rests_until, began + int(seconds * 1000))
                soonest = min(due.values(), default=end)
                if soonest >= end or self.clock() >= end:
                    return self._reports
                self.sleep(max(0.0, (soonest - self.clock()) / 1000))
        finally:
            if self._hold():
                self._write(self._reports)

    def _interval(self, task: Task, last: TaskReport) -> float:
        """Seconds between the begins of two rounds."""
        idle = self.clock() >= last.moved_at + int(self.idle_after_seconds * 1000)
        return max(task.every_seconds, task.idle_seconds) if idle else task.every_seconds

    def _next(self, task: Task, last: TaskReport | None) -> int:
        """When a task is due, given its last report by an earlier run, ms since the epoch.

        No run waits for what comes once a minute or more seldom: it is done at the start of the nearest run, for tasks
        before it take longer in one run than in another.
        """
        now = self.clock()
        if last is None:
            return now
        interval = self._interval(task, last)
        due = max(last.rests_until, last.at - last.ms + int(interval * 1000))
        if interval < MINUTE or due >= now + int(MINUTE * 1000):
            return due
        return now if due <= now + int(MINUTE / 2 * 1000) else now + int(MINUTE * 1000)

    def _do(self, task: Task, last: TaskReport | None, deadline: Deadline) -> None:
        """Run one round of one task, and report it."""
        report, began, error = RoundReport(), self.clock(), ""

        def remaining() -> float:
            # A write after the end of the lease could undo a successor's work.
            return min(deadline() - NEAR_SECONDS, (self.lease.until - self.clock()) / 1000)

        try:
            task.act(report, remaining)
        except MirrorlessError as exc:
            error = str(exc)
            if isinstance(exc, LeaseLost):
                self.lease.until = 0  # it is taken again, or another run has it
        ended = self.clock()
        result = TaskReport(
            task=task.name,
            at=ended,
            ms=ended - began,
            first_at=ended if last is None else last.first_at,
            ok_at=(last.ok_at if last is not None else 0) if error else ended,
            ok_ms=(last.ok_ms if last is not None else 0) if error else ended - began,
            moved_at=ended if report.moved or last is None else last.moved_at,
            rests_until=began + int(report.rest_seconds * 1000),
            error=error,
            troubles=tuple(report.troubles),
            counts=dict(report.counts.items()),
        )
        self._reports[task.name] = result
        begins = ended < result.first_at + int(MINUTE * 1000)
        (self._soon.add if report.comes_soon and begins else self._soon.discard)(task.name)
        self.on_report(result)
        written = self._written.get(task.name)
        if (
            written is None
            or (result.error, result.troubles) != (written.error, written.troubles)
            or result.at >= written.at + WRITE_EVERY_MS
        ) and self._hold():
            self._write({task.name: result})

    def _write(self, reports: Mapping[str, TaskReport]) -> None:
        changed = {name: report for name, report in reports.items() if self._written.get(name) != report}
        if changed:
            documents = {f"task/{name}": msgspec.json.encode(_shortened(report)) for name, report in changed.items()}
            self.documents.write(self.flow, documents, epoch=self.lease.epoch)
        self._written |= changed

    def _hold(self) -> bool:
        """Take the lease, or renew it."""
        now = self.clock()
        if now < self.lease.until - self.lease_ms + RENEW_AFTER_MS:
            return True
        until, longest = now + self.lease_ms, None if self.lease.epoch else LONGEST_MS
        epoch = self.documents.claim(
            self.flow, lease(self.function), holder=self.holder, now=now, until=until, longest=longest
        )
        self.lease.epoch, self.lease.until = (self.lease.epoch, 0) if epoch is None else (epoch, until)
        return epoch is not None


def lease(function: str) -> str:
    """The key of the lease for a flow's runs of a function."""
    return f"lease/{function}"


def _shortened(report: TaskReport) -> TaskReport:
    """The report for its document."""
    more = len(report.troubles) - TROUBLES
    if more <= 0:
        return report
    return msgspec.structs.replace(report, troubles=(*report.troubles[:TROUBLES], f"and {more} more, see the log"))
