"""The task runner: intervals, the lease, and the stored reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import LeaseLost, Retriable
from mirrorless.scheduled.runner import HeldLease, LeasedDocuments, RoundReport, Task, TaskReport, TaskRunner
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments

Act = Callable[[RoundReport, Deadline], None]


@dataclass(slots=True)
class Minute:
    """A run with a clock of its own; sleeping is the only thing that takes time, unless a task does."""

    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    now: int = 1_000_000
    done: list[tuple[str, int]] = field(default_factory=list)
    reports: list[TaskReport] = field(default_factory=list)
    """Those that the log has."""
    lease: HeldLease = field(default_factory=HeldLease)
    """Of the last run."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * 1000)

    def task(
        self, name: str, every_seconds: float, act: Act = lambda _report, _deadline: None, *, idle: float = 0
    ) -> Task:
        """A task that records when it ran."""

        def noted(report: RoundReport, deadline: Deadline) -> None:
            self.done.append((name, self.now))
            act(report, deadline)

        return Task(name=name, every_seconds=every_seconds, idle_seconds=idle, act=noted)

    def rounds(self, holder: str = "first") -> TaskRunner:
        """A run."""
        self.lease = HeldLease()
        return TaskRunner(
            flow=FLOW,
            function="control",
            documents=self.documents,
            clock=lambda: self.now,
            sleep=self.sleep,
            holder=holder,
            lease=self.lease,
            on_report=self.reports.append,
        )

    def run(
        self, *tasks: Task, window: float = 58, seconds: float = 90, holder: str = "first"
    ) -> dict[str, TaskReport]:
        """One run, from now on."""
        end = self.now + int(seconds * 1000)
        return self.rounds(holder).run(tasks, window_seconds=window, deadline=lambda: (end - self.now) / 1000)

    def runs(self, count: int, *tasks: Task) -> None:
        """So many runs, a minute apart."""
        for _ in range(count):
            began = self.now
            self.run(*tasks)
            self.now = began + 60_000

    def write(self, **documents: str) -> None:
        """Write documents as a task of the last run does."""
        leased = LeasedDocuments(self.documents, self.lease, lambda: self.now)
        leased.write(FLOW, {f"topic/{name}": text.encode() for name, text in documents.items()})

    def heir(self, key: str) -> None:
        """Another run takes the lease over for an hour, and writes a document."""
        epoch = self.documents.claim(FLOW, "lease/control", holder="heir", now=self.now, until=self.now + 3_600_000)
        assert epoch
        self.documents.write(FLOW, {key: b"heir"}, epoch=epoch)

    def times(self, name: str) -> list[int]:
        """Seconds after the start of the first run at which a task ran."""
        return [(at - 1_000_000) // 1000 for task, at in self.done if task == name]


@pytest.fixture
def minute() -> Minute:
    return Minute()


@dataclass(frozen=True, slots=True)
class Work:
    """A task, whose rounds find and do this. Times are seconds since the first run began."""

    every: float
    idle: float = 0
    moved: Collection[int] = ()
    """When a round finds something new."""
    missing: Collection[int] = ()
    """When one misses what is just being made."""
    rests: float = 0
    lasts: float = 0

    def task(self, name: str, minute: Minute) -> Task:
        """The task of a run."""

        def act(report: RoundReport, _deadline: Deadline) -> None:
            at = (minute.now - 1_000_000) // 1000
            report.moved, report.comes_soon, report.rest_seconds = at in self.moved, at in self.missing, self.rests
            minute.sleep(self.lasts)

        return minute.task(name, self.every, act, idle=self.idle)


ALWAYS = range(10_000)
EVERY_20 = range(0, 300, 20)


@pytest.mark.parametrize(
    ("tasks", "runs", "times"),
    [
        pytest.param([Work(1), Work(5)], 1, [range(58), range(0, 58, 5)], id="each task at its own interval"),
        pytest.param([Work(600)], 11, [[0, 600]], id="what is not due yet waits for a later run"),
        pytest.param([Work(20, idle=60)], 8, [[*EVERY_20, 360, 420]], id="each minute where nothing moved for five"),
        pytest.param(
            [Work(20, idle=60, moved=[420])],
            9,
            [[*EVERY_20, 360, 420, 440, 460, 480, 500, 520]],
            id="something new brings back the short interval",
        ),
        pytest.param([Work(2, rests=7)], 1, [range(0, 58, 7)], id="a round that has read much rests for longer"),
        pytest.param([Work(2, rests=50)], 2, [[0, 50, 100]], id="a rest is kept by the next run"),
        pytest.param(
            [Work(60, missing=range(5)), Work(60, missing=ALWAYS)],
            3,
            [[0, 3, 6, 60, 120], [*range(0, 58, 3), 120]],
            id="what a first round missed is looked for at once, though not for ever",
        ),
        pytest.param([Work(60, missing=ALWAYS[101:])], 4, [[0, 60, 120, 180]], id="later than that it is not"),
        pytest.param(
            [Work(60, lasts=7), Work(60)], 3, [[0, 60, 120], [7, 67, 127]], id="a long task puts off no other"
        ),
    ],
)
def test_a_task_is_done_when_it_is_due(
    tasks: Sequence[Work], runs: int, times: Sequence[Sequence[int]], minute: Minute
) -> None:
    """Runs begin a minute apart."""
    minute.runs(runs, *(each.task(str(place), minute) for place, each in enumerate(tasks)))

    assert [minute.times(str(place)) for place in range(len(tasks))] == [[*each] for each in times]


def test_a_run_ends_when_no_more_is_due_in_it_and_before_lambda_does(minute: Minute) -> None:
    minute.run(minute.task("configs", 600))
    assert minute.now == 1_000_000
    minute.run(minute.task("heartbeats", 1), window=58, seconds=10)
    assert minute.times("heartbeats") == list(range(8))


def test_an_idle_run_ends_at_once_although_it_began_later_than_the_one_before(minute: Minute) -> None:
    """EventBridge starts a run some seconds earlier or later in its minute; waiting is billed."""
    minute.run(minute.task("lanes", 60))
    minute.now += 56_000
    minute.run(minute.task("lanes", 60))
    assert minute.times("lanes") == [0, 56]
    assert minute.now == 1_056_000


def test_a_tasks_deadline_is_not_later_than_the_end_of_the_lease(minute: Minute) -> None:
    """Nor than shortly before Lambda's. It falls steadily: limits within a round are differences of it."""
    left: list[float] = []

    def work(_report: RoundReport, deadline: Deadline) -> None:
        for _ in range(4):
            left.append(deadline())
            minute.sleep(16)

    minute.run(minute.task("checkpoints", 2, work), window=5)
    assert left == [45.0, 29.0, 13.0, -3.0]
    left.clear()
    minute.run(minute.task("checkpoints", 2, work), window=5, seconds=30)
    assert left == [28.0, 12.0, -4.0, -20.0]


def test_every_round_has_nearly_the_whole_lease(minute: Minute) -> None:
    left: list[float] = []
    minute.run(minute.task("checkpoints", 3, lambda _report, deadline: left.append(deadline())), window=30, seconds=120)
    assert left == [45.0, 42.0] * 5


def test_a_task_that_fails_does_not_stop_the_others_and_runs_again(minute: Minute) -> None:
    def fail(_report: RoundReport, _deadline: Deadline) -> None:
        raise Retriable("the target does not answer", where="us-east->eu-west")

    reports = minute.run(minute.task("heartbeats", 5, fail), minute.task("checkpoints", 5), window=8)
    assert minute.times("heartbeats") == [0, 5]
    assert minute.times("checkpoints") == [0, 5]
    assert "does not answer" in reports["heartbeats"].error
    assert reports["heartbeats"].ok_at == 0
    assert reports["checkpoints"].error == ""


def test_a_defect_of_ours_is_not_hidden_and_the_lease_is_given_back(minute: Minute) -> None:
    def break_down(_report: RoundReport, _deadline: Deadline) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        minute.run(minute.task("heartbeats", 5, break_down))
    assert minute.documents.leases == {}


def test_the_report_stays_for_the_operator(minute: Minute) -> None:
    def note(report: RoundReport, _deadline: Deadline) -> None:
        report.counts["groups"] = 3
        report.troubles.append("us-east->eu-west orders: the source does not have it")

    minute.run(minute.task("checkpoints", 60, note))
    stored = msgspec.json.decode(minute.documents.read(FLOW, "task/")["task/checkpoints"], type=TaskReport)
    assert stored.counts == {"groups": 3}
    assert stored.troubles == ("us-east->eu-west orders: the source does not have it",)
    assert stored.ok_at == stored.at == 1_000_000


def test_of_100_000_troubles_the_document_has_the_first_thousand_and_the_report_all(minute: Minute) -> None:
    def note(report: RoundReport, _deadline: Deadline) -> None:
        report.troubles += [f"orders-{partition} waits" for partition in range(100_000)]

    reports = minute.run(minute.task("lanes", 60, note))
    stored = msgspec.json.decode(minute.documents.read(FLOW, "task/")["task/lanes"], type=TaskReport)
    assert stored.troubles == (*reports["lanes"].troubles[:1_000], "and 99000 more, see the log")
    assert len(reports["lanes"].troubles) == 100_000


def test_an_error_leaves_the_time_of_the_last_success(minute: Minute) -> None:
    minute.run(minute.task("configs", 60))
    minute.now += 60_000

    def fail(_report: RoundReport, _deadline: Deadline) -> None:
        raise Retriable("no")

    reports = minute.run(minute.task("configs", 60, fail))
    assert (reports["configs"].ok_at, reports["configs"].at) == (1_000_000, 1_060_000)


def test_a_second_run_waits_for_the_first_one_and_then_goes_on(minute: Minute) -> None:
    minute.documents.claim(FLOW, "lease/control", holder="other", now=0, until=1_004_000)
    minute.run(minute.task("heartbeats", 1), window=8)
    assert minute.times("heartbeats") == [4, 5, 6, 7]


def test_a_second_run_does_nothing_while_the_first_one_is_at_work(minute: Minute) -> None:
    minute.documents.claim(FLOW, "lease/control", holder="other", now=0, until=2_000_000)
    assert minute.run(minute.task("heartbeats", 1)) == {}
    assert minute.done == []


def test_a_run_that_was_killed_with_its_clock_ahead_is_replaced_at_once(minute: Minute) -> None:
    minute.documents.claim(FLOW, "lease/control", holder="killed", now=0, until=minute.now + 3_600_000)
    minute.run(minute.task("heartbeats", 1), window=4)
    assert minute.times("heartbeats") == [0, 1, 2, 3]


def test_a_run_that_was_taken_for_dead_stops(minute: Minute) -> None:
    def freeze(_report: RoundReport, _deadline: Deadline) -> None:
        minute.now += 50_000
        assert minute.documents.claim(FLOW, "lease/control", holder="heir", now=minute.now, until=10**9)

    minute.run(minute.task("checkpoints", 1, freeze))
    assert minute.times("checkpoints") == [0]


def test_a_run_that_was_taken_for_dead_leaves_the_report_of_its_successor(minute: Minute) -> None:
    def freeze(_report: RoundReport, _deadline: Deadline) -> None:
        minute.now += 50_000
        minute.heir("task/checkpoints")

    minute.run(minute.task("checkpoints", 1, freeze))
    assert minute.documents.read(FLOW, "task/") == {"task/checkpoints": b"heir"}
    assert [report.ms for report in minute.reports] == [50_000]


def test_a_task_of_a_run_that_was_taken_for_dead_replaces_no_document(minute: Minute) -> None:
    """Neither what the successor has written, nor what it has only read."""

    def freeze(_report: RoundReport, _deadline: Deadline) -> None:
        minute.write(orders="first", payments="first")
        minute.now += 50_000
        minute.heir("topic/orders")
        minute.write(payments="late", orders="late")

    minute.run(minute.task("topics", 1, freeze), minute.task("configs", 1))
    assert minute.documents.read(FLOW, "topic/") == {"topic/orders": b"heir", "topic/payments": b"first"}
    assert minute.times("topics") == [0]
    assert minute.times("configs") == []
    assert "nothing was written" in minute.reports[0].error


def test_a_document_under_way_when_the_lease_is_taken_over_is_fenced_by_its_epoch(minute: Minute) -> None:
    """The check of the time was passed long ago: the process stood still between it and the request."""

    def freeze(_report: RoundReport, _deadline: Deadline) -> None:
        epoch, minute.now = minute.lease.epoch, minute.now + 50_000
        minute.heir("topic/orders")
        minute.documents.write(FLOW, {"topic/orders": b"late"}, epoch=epoch)

    minute.run(minute.task("topics", 1, freeze))
    assert minute.documents.read(FLOW, "topic/") == {"topic/orders": b"heir"}
    assert "a later run" in minute.reports[0].error


def test_a_run_that_finds_the_documents_of_a_later_one_ends_whatever_its_clock_shows(minute: Minute) -> None:
    """The other one's is fast."""

    def work(_report: RoundReport, _deadline: Deadline) -> None:
        epoch = minute.documents.claim(FLOW, "lease/control", holder="heir", now=minute.now + 50_000, until=10**10)
        minute.documents.write(FLOW, {"topic/orders": b"heir"}, epoch=epoch)
        minute.write(orders="late")

    minute.run(minute.task("topics", 1, work))
    assert minute.times("topics") == [0]
    assert minute.documents.read(FLOW, "topic/") == {"topic/orders": b"heir"}


def test_a_report_under_way_when_the_lease_is_taken_over_is_fenced_too(
    minute: Minute, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MemoryDocuments.write

    def held_up(documents: MemoryDocuments, flow: FlowName, found: Mapping[str, bytes], *, epoch: int | None) -> None:
        monkeypatch.undo()
        minute.now += 50_000
        minute.heir("task/topics")
        write(documents, flow, found, epoch=epoch)

    monkeypatch.setattr(MemoryDocuments, "write", held_up)
    with pytest.raises(LeaseLost):
        minute.run(minute.task("topics", 60))
    assert minute.documents.read(FLOW, "task/") == {"task/topics": b"heir"}


def test_a_run_that_outlived_its_lease_and_was_not_replaced_goes_on(minute: Minute) -> None:
    """The round that took too long has failed; the next one has the lease again."""

    def linger(_report: RoundReport, _deadline: Deadline) -> None:
        if len(minute.done) == 1:
            minute.now += 50_000
        minute.write(orders=str(minute.now))

    reports = minute.run(minute.task("topics", 60, linger), minute.task("configs", 2), window=60)
    assert "nothing was written" in reports["topics"].error
    assert minute.times("configs") == [50, 52, 54, 56, 58]
    stored = msgspec.json.decode(minute.documents.read(FLOW, "task/topics")["task/topics"], type=TaskReport)
    assert stored.error == reports["topics"].error


def test_an_unchanged_report_is_written_every_few_seconds_only(minute: Minute) -> None:
    minute.run(minute.task("heartbeats", 1), window=20)
    assert minute.documents.writes <= 20 // 5 + 1
