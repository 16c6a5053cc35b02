"""A cap holds on average, and the lease is renewed while a lane pauses."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from mirrorless.jobs.copy_task import CopyTask
from mirrorless.jobs.lane_copy import LaneCopy
from mirrorless.jobs.progress import LaneProgress, add_up
from mirrorless.jobs.request import PROGRESS
from mirrorless.scheduled.rate_limit import ByteRateLimit
from mirrorless.settings import ClusterSettings, FlowSettings


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
