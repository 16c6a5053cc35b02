"""A cap holds over any five seconds, in jobs and in scheduled runs, and the lease is renewed while a lane pauses."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Literal, cast

import msgspec
import pytest

from mirrorless.backfill.plan import make_plan
from mirrorless.errors import LeaseHeld
from mirrorless.flow.rate_limit import WINDOW_SECONDS, ByteRateLimit
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.plan import PlannedLane
from mirrorless.jobs.progress import LaneProgress, add_up
from mirrorless.jobs.request import PROGRESS, BackfillOptions, JobRequest, lane_file
from mirrorless.protocol.outgoing import LaneContent
from mirrorless.records.batch_records import records as records_in_batch
from mirrorless.records.record import Headers, Record, size_of
from spark import backfill
from spark.jobs.driver import JobRun
from spark.jobs.lane_copies import wire_copy
from spark.jobs.lane_tasks import TaskAttempt
from tests.support.batches import in_batches
from tests.support.clusters import MemoryWriter
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_flow
from tests.support.protocol_world import World, records
from tests.support.pulled import RUN_SECONDS, PullFunction
from tests.unit.copy.test_job import passes, task_of


class Clock:
    """A clock that moves by `sleep` alone."""

    def __init__(self) -> None:
        self.now, self._lock = 0.0, threading.Lock()

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass, also of several threads."""
        with self._lock:
            self.now += seconds


ROUNDING = 1e-4
"""Of seconds since the epoch."""

Write = tuple[float, float, int]
"""When it began and ended, and its bytes."""


def most_in_a_window(writes: Sequence[Write]) -> int:
    """The most bytes that any five seconds may have had, whenever within its time a write took effect."""
    begins = [at for began, ended, _ in writes for at in (began, ended)]
    return max(
        sum(size for began, ended, size in writes if began < at + WINDOW_SECONDS - ROUNDING and ended >= at)
        for at in begins
    )


@pytest.mark.parametrize("seed", range(20))
def test_over_any_five_seconds_no_more_is_written_than_the_cap_allows_and_not_much_less(seed: int) -> None:
    """Whatever the sizes, however long a write takes, and behind pauses of the writer."""
    chance, clock, writes = random.Random(seed), Clock(), list[Write]()
    limit = ByteRateLimit(1000.0, sleep=clock.sleep, clock=clock)
    slow, idle = chance.choice([0.0, 0.3]), chance.choice([0.0, 0.02])
    while clock.now < 120:
        size = chance.choice([1000, chance.randint(1, 1000), chance.randint(1, 50)])
        with limit.paid(size, lambda: None):
            began = clock.now
            clock.now += chance.random() * slow
        writes.append((began, clock.now, size))
        if chance.random() < idle:
            clock.now += chance.random() * 20
    assert most_in_a_window(writes) <= 5000
    if not idle:
        assert sum(size for *_, size in writes) >= 0.8 * 1000 * clock.now  # what is being written counts to its end


def test_writers_side_by_side_share_a_cap_and_each_comes_to_its_turn() -> None:
    clock, writes = Clock(), list[Write]()
    limit = ByteRateLimit(1_000_000.0, sleep=clock.sleep, clock=clock)

    def write(number: int) -> None:
        for _ in range(5):
            with limit.paid(200_000 if number else 20_000, lambda: None):
                writes.append((clock.now, clock.now, number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert clock.now >= 2 + 3.0  # the bucket is empty at first, as of a process that follows another
    assert [sum(number == each for *_, number in writes) for each in range(4)] == [5, 5, 5, 5]


def test_a_record_larger_than_the_cap_is_paid_for_first_and_alone_while_the_lease_is_renewed() -> None:
    clock, renewed = Clock(), list[float]()
    limit = ByteRateLimit(1000.0, sleep=clock.sleep, clock=clock)
    with limit.paid(12_000, lambda: renewed.append(clock.now)):
        assert clock.now == 14.0  # with the two seconds of a process that may follow another
    assert renewed == [5.0, 10.0, 14.0]
    with limit.paid(1, lambda: None):
        assert clock.now == 14.0 + WINDOW_SECONDS
    assert limit.paused_seconds == 19.0


def test_of_a_record_far_too_large_for_the_cap_a_minute_is_paid_before_and_the_rest_afterwards() -> None:
    clock = Clock()
    limit = ByteRateLimit(1000.0, sleep=clock.sleep, clock=clock)
    with limit.paid(1_000_000, lambda: None):
        assert clock.now == 62.0
    with limit.paid(1000, lambda: None):
        assert clock.now == pytest.approx(2 + 1_000 + 1)


def test_one_that_gives_up_its_turn_leaves_it_to_the_others() -> None:
    clock = Clock()
    limit = ByteRateLimit(1000.0, sleep=clock.sleep, clock=clock)

    def lost() -> None:
        raise LeaseHeld("another job has the lane")

    with pytest.raises(LeaseHeld), limit.paid(100_000, lost):
        pass
    with limit.paid(1000, lambda: None):
        assert clock.now < 10


@pytest.mark.parametrize("seed", range(14))
def test_the_lanes_of_a_job_keep_its_cap_over_any_five_seconds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whole batches, some of which are larger than what may be written at once, by records, and with one that is.

    Where batches are opened, what counts is their records: the last ones have nearly nothing in the log.
    """
    chance, small = random.Random(seed), seed >= 12
    there = World({partition: records(*range(60)) for partition in (0, 1)})
    for record in (each for some in there.source.values() for each in some):
        record.headers = [("noise", bytes(500) if small else chance.randbytes(chance.randint(1, 400)))]
    large: Headers = [("noise", chance.randbytes(9_000))]
    there.source[1][30].headers = large
    there.batches = {
        partition: in_batches(some, chance, largest=1 if small else chance.choice([2, 6, 30]), thinned=0.0)
        for partition, some in there.source.items()
    }
    began, writes, write = there.now, list[Write](), MemoryWriter.write

    def timed(writer: MemoryWriter, lanes: Any, deadline: Any, meanwhile: Any) -> Any:
        at = (there.now - began) / 1000
        there.now += chance.randint(0, 300)
        content = records_of(lanes)
        if any(record.headers == large for record in content):
            assert len(content) == 1  # and nothing with it
        else:
            writes.append((at, (there.now - began) / 1000, sum(map(size_of, content))))
        return write(writer, lanes, deadline, meanwhile)

    monkeypatch.setattr(MemoryWriter, "write", timed)
    task = task_of(
        there,
        (0, 60),
        engine="batches" if small else chance.choice(["batches", "records"]),
        partitions=(0, 1),
        chance=chance,
    )
    task.limit = ByteRateLimit(1000.0, sleep=lambda seconds: passes(there, seconds), clock=lambda: there.now / 1000)

    assert [each.state for each in task.run()] == ["done", "done"]
    assert [there.visible(partition) for partition in (0, 1)] == [list(range(60))] * 2
    there.assert_invariants()
    assert most_in_a_window(writes) <= 5000


def records_of(lanes: Mapping[object, LaneContent]) -> list[Record]:
    """The records of what is written, also of those in batches."""
    return [
        record
        for content in lanes.values()
        for each in content
        for record in ([each] if isinstance(each, Record) else records_in_batch(each))
    ]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_of_a_schedule_keeps_its_cap_over_any_five_seconds(
    seed: int, *, raw: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over the end of a run in the same environment; and its report says for how long the cap held it back."""
    chance = random.Random(seed)
    there = World({partition: records(*range(60)) for partition in range(3)}, topics=2)
    for record in (each for some in there.source.values() for each in some):
        record.headers = [("noise", chance.randbytes(chance.randint(1, 400)))]
    if raw:
        there.batches = {place: in_batches(some, chance, thinned=0.0) for place, some in there.source.items()}
    began, writes, write = there.now, list[Write](), MemoryWriter.write

    def timed(writer: MemoryWriter, lanes: Any, deadline: Any, meanwhile: Any) -> Any:
        at = (there.now - began) / 1000
        there.now += chance.randint(0, 300)
        writes.append((at, (there.now - began) / 1000, sum(map(size_of, records_of(lanes)))))
        return write(writer, lanes, deadline, meanwhile)

    monkeypatch.setattr(MemoryWriter, "write", timed)
    limit = ByteRateLimit(1000.0, sleep=lambda seconds: passes(there, seconds), clock=lambda: there.now / 1000)
    pulling = PullFunction(there, chance, MemoryDocuments(), "environment", continuous=False, raw=raw, limit=limit)
    reports = [pulling.invoke() for _ in range(3)]

    assert [there.visible(partition) for partition in range(3)] == [list(range(60))] * 3
    assert most_in_a_window(writes) <= 5000
    assert sum(each.limited_ms for each in reports if each is not None) > 20_000


@pytest.mark.parametrize("raw", [False, True])
def test_a_record_that_has_no_room_in_all_of_a_run_is_copied_and_the_cap_kept_over_the_runs(*, raw: bool) -> None:
    chance = random.Random(3)
    there = World({0: records(*range(6))})
    there.source[0][2].headers = [("noise", chance.randbytes(int(RUN_SECONDS * 1200)))]
    if raw:
        there.batches = {0: in_batches(there.source[0], chance, thinned=0.0)}
    began = there.now
    limit = ByteRateLimit(1000.0, sleep=lambda seconds: passes(there, seconds), clock=lambda: there.now / 1000)
    pulling = PullFunction(there, chance, MemoryDocuments(), "environment", continuous=False, raw=raw, limit=limit)
    for run in range(4):
        at = there.now
        pulling.invoke()
        assert there.now - at < RUN_SECONDS * 1000, "it ends by itself"
        assert 2 in there.visible(), "in the first run"
        if run == 0:
            assert there.visible() != list(range(6))
        there.now += 1_000
    assert there.visible() == list(range(6))
    assert (there.now - began) / 1000 > RUN_SECONDS * 1.2, "the debt is paid"
    there.assert_invariants()


class RunFolder:
    """Implements `JobFiles`, with the progress of a job whose lanes end one after the other."""

    place = "memory"

    def __init__(self, clock: Clock) -> None:
        self.clock, self.note = clock, ""

    def read(self, name: str) -> bytes | None:
        """The sum: ten lanes run and 20 wait for 100 seconds, and one is left from then on."""
        assert name == PROGRESS
        left = 30 if self.clock.now < 100 else 1
        progress = add_up(
            [LaneProgress(lane=f"a->b orders-{n}", state="running" if n < 10 else "waiting") for n in range(left)],
            run_id="backfill-1",
            kind="backfill",
            flow="a->b",
            state="running",
            phase="copy",
            started_at=0,
            at=1,
        )
        return msgspec.json.encode(progress)

    def write(self, name: str, content: bytes) -> None:
        """A lane's note."""
        assert name == lane_file("orders", 0)
        self.note = msgspec.json.decode(content, type=LaneProgress).note


def test_the_last_lanes_take_over_the_share_of_tasks_that_are_done() -> None:
    """With nearly all bytes in one of 60 lanes, a share that stood still made hours to days."""
    clock, there = Clock(), World({0: records(0)})
    task = task_of(there, (0, 1), max_bytes_per_second=1000.0, job_bytes_per_second=10_000.0)
    folder, limit = RunFolder(clock), ByteRateLimit(1000.0, sleep=clock.sleep, clock=clock)
    task.limit, task.monotonic = limit, clock
    (lane,) = task.lanes.values()
    lane.files, lane.monotonic = cast("Any", folder), clock
    task.readings.only(task.lanes)

    def wait() -> None:
        task._between_pauses(lambda: 60.0)

    for _ in range(40):
        with limit.paid(1_000, wait):
            pass
    assert clock.now == pytest.approx(42)  # 30 lanes are left, and ten tasks run at a time
    clock.now = 100.0
    for _ in range(100):
        with limit.paid(1_000, wait):
            pass
    assert limit.bytes_per_second == 10_000.0
    assert clock.now < 100 + 30
    assert "limited to 0.01 MB/s" in folder.note


@pytest.mark.parametrize("copy", ["auto", "records"])
def test_the_lanes_that_are_copied_at_the_same_time_share_the_cap_from_the_beginning(
    copy: Literal["auto", "records"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks have a share each, and all lanes of a worker one limit: six of a task took six times the cap once."""
    given = list[CopyTask]()

    def copy_all(_: object, tasks: list[CopyTask], **__: object) -> list[CopyResult]:
        given.extend(tasks)
        return [CopyResult(lane=str(task.lane), partition=task.partition, state="done") for task in tasks]

    monkeypatch.setattr(backfill, "copy_all", copy_all)
    settings = make_flow("a->b", copying=copy)
    options = BackfillOptions(max_mb_per_second=6.0)
    run = SimpleNamespace(
        request=JobRequest("run-1", settings, ("orders",), options),
        files=SimpleNamespace(place=""),
        context=None,
        expect=lambda _: None,
    )
    lanes = [
        PlannedLane(
            topic="orders",
            partition=number,
            lane_topic="orders",
            write_topic="a.orders",
            range=OffsetRange(0, 10),
            position=0,
            offsets=10,
            bytes=0,
        )
        for number in range(30)
    ]
    plan = make_plan("run-1", "a->b", lanes, [], at_a_time=2, max_mb_per_second=6.0, hands_over=False)

    backfill.copy_lanes(cast("JobRun", run), plan, options, lambda task, _: task)

    assert {each.max_bytes_per_second for each in given} == {6e6 / plan.lanes_at_a_time}
    assert {each.job_bytes_per_second for each in given} == {6e6}
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    beside = [wire_copy([task], TaskAttempt(0, last=True)).limit for task in given[:3]]
    assert beside[0] is not None
    assert all(each is beside[0] for each in beside)
