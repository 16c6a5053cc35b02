"""A cap holds on average, and the lease is renewed while a lane pauses."""

from __future__ import annotations

from mirrorless.scheduled.rate_limit import ByteRateLimit


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
