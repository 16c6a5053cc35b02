"""A cap holds on average, and the lease is renewed while a lane pauses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, cast

import msgspec
import pytest

from mirrorless.backfill.plan import make_plan
from mirrorless.jobs.copy_task import CopyResult, CopyTask, OffsetRange
from mirrorless.jobs.lane_copy import LaneCopy
from mirrorless.jobs.plan import PlannedLane
from mirrorless.jobs.progress import LaneProgress, add_up
from mirrorless.jobs.request import PROGRESS, BackfillOptions, JobRequest
from mirrorless.scheduled.rate_limit import ByteRateLimit
from mirrorless.settings import ClusterSettings, FlowSettings
from spark import backfill
from spark.jobs.driver import JobRun


class Clock:
    """A clock that moves by `sleep` alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def test_a_lane_takes_as_long_as_its_cap_says_and_renews_its_lease_in_long_pauses() -> None:
    clock, renewed = Clock(), []
    pace = ByteRateLimit(1000.0, sleep=clock.sleep, clock=clock)
    pace.spend(12_000, lambda: renewed.append(clock.now))
    assert clock.now == 12.0
    assert renewed == [5.0, 10.0, 12.0]


def test_a_lane_that_was_slower_catches_up_one_second_at_most() -> None:
    clock = Clock()
    pace = ByteRateLimit(1000.0, sleep=clock.sleep, clock=clock)
    clock.now = 100.0
    pace.spend(3000, lambda: None)
    assert clock.now == 102.0


class RunFolder:
    """Implements `JobFiles`, with the progress of a job whose lanes end one after the other."""

    place = "memory"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def read(self, name: str) -> bytes | None:
        """The sum: ten lanes for 100 seconds, and one from then on."""
        assert name == PROGRESS
        running = 10 if self.clock.now < 100 else 1
        progress = add_up(
            [LaneProgress(lane=f"a->b orders-{number}", state="running") for number in range(running)],
            run_id="backfill-1",
            kind="backfill",
            flow="a->b",
            state="running",
            phase="copy",
            started_at=0,
            at=1,
        )
        return msgspec.json.encode(progress)


def test_a_lane_takes_over_the_shares_of_those_that_are_done() -> None:
    """With nearly all bytes in one of 60 lanes, a share that stood still made hours to days."""
    clock, cluster = Clock(), ClusterSettings(alias="a", bootstrap="a")
    task = CopyTask(
        settings=FlowSettings(flow="a->b", source=cluster, target=cluster),
        lane_topic="orders",
        read_topic="orders",
        write_topic="a.orders",
        partition=0,
        ranges=(),
        run_id="backfill-1",
        max_bytes_per_second=1000.0,
        job_bytes_per_second=10_000.0,
    )
    unused = cast("Any", None)
    copy = LaneCopy(
        task=task, replicator=unused, log=unused, files=cast("Any", RunFolder(clock)), clock=lambda: 0, monotonic=clock
    )
    copy._rate_limit = ByteRateLimit(1000.0, sleep=clock.sleep, clock=clock)

    for _ in range(40):
        copy._rate_limit.spend(10_000, copy._between_pauses)

    assert 100 + 28 < clock.now < 100 + 45  # ten chunks of ten seconds, and thirty of one


@pytest.mark.parametrize(("copy", "at_a_time"), [("auto", 12), ("records", 2)])
def test_the_lanes_that_are_copied_at_the_same_time_share_the_cap_from_the_beginning(
    copy: Literal["auto", "records"], at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six of a task: with a share for each task they took six times the cap, until the first look at the others."""
    cluster, given = ClusterSettings(alias="a", bootstrap="a"), list[CopyTask]()

    def copy_all(_: object, tasks: list[CopyTask], **__: object) -> list[CopyResult]:
        given.extend(tasks)
        return [CopyResult(lane=str(task.lane), partition=task.partition, state="done") for task in tasks]

    monkeypatch.setattr(backfill, "copy_all", copy_all)
    settings = FlowSettings(flow="a->b", source=cluster, target=cluster, copy=copy)
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

    assert {each.max_bytes_per_second for each in given} == {6e6 / at_a_time}
    assert {each.job_bytes_per_second for each in given} == {6e6}
