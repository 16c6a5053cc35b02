"""What a job costs by its workers."""

from __future__ import annotations

import pytest

from mirrorless.cost.jobs import DRIVER, EXECUTOR, dollars, dollars_per_hour, executors_for


def test_an_hour_of_a_driver_and_two_executors_costs_their_cores_and_memory() -> None:
    expected = 6 * 0.042094 + (4 + 2 * 6) * 0.004628

    assert dollars(3600, executors=2) == pytest.approx(expected)
    assert dollars_per_hour(DRIVER) + 2 * dollars_per_hour(EXECUTOR) == pytest.approx(expected)


def test_a_worker_is_charged_for_a_minute_at_least() -> None:
    assert dollars(1, executors=1) == dollars(60, executors=1)


def test_the_other_architecture_costs_more() -> None:
    assert dollars(60, executors=1, architecture="x86_64") > dollars(60, executors=1)


@pytest.mark.parametrize(("lanes", "most", "expected"), [(0, 31, 1), (1, 31, 1), (12, 31, 6), (500, 31, 31)])
def test_a_job_uses_no_more_executors_than_its_lanes_fill(lanes: int, most: int, expected: int) -> None:
    assert executors_for(lanes, most=most) == expected
