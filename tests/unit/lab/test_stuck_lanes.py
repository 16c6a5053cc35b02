"""The times in which lanes are stuck, and the faults that they are counted for."""

from __future__ import annotations

import pytest

from lab.audit.stuck_lanes import AFTERMATH_SECONDS, FaultSpan, StuckTime, StuckTimes, longest_by_fault


def looked(*looks: tuple[float, int, int], end: float) -> list[tuple[float, float]]:
    """The times of one lane, of looks with its position and the end of its records."""
    times = StuckTimes()
    for at, position, shown in looks:
        times.look(at, {0: position}, {0: shown})
    return [(each.began, each.ended) for each in times.end(end)]


@pytest.mark.parametrize(
    ("looks", "end", "stuck"),
    [
        ([(1, 0, 10), (2, 0, 20), (3, 0, 20), (4, 20, 20)], 9, [(1, 4)]),
        ([(1, 10, 10), (2, 10, 10), (3, 10, 9)], 9, []),
        ([(1, 0, 50), (2, 10, 50), (3, 20, 50), (4, 50, 50)], 9, [(1, 2), (2, 3), (3, 4)]),
        ([(1, 30, 50), (4, 0, 50), (5, 50, 50)], 9, [(1, 4), (4, 5)]),
        ([(1, 0, 10), (30, 10, 10)], 40, [(1, 30)]),
        ([(1, 0, 10), (2, 0, 10)], 9, [(1, 9)]),
    ],
    ids=[
        "records wait and its position stays",
        "no record waits",
        "it moves, and is not stuck at its next position before it is seen there",
        "a reset to an earlier position is a movement",
        "a look that does not take place ends nothing",
        "what is not over lasts until the end",
    ],
)
def test_a_lane_is_stuck_while_records_wait_and_its_position_stays(
    looks: list[tuple[float, int, int]], end: float, stuck: list[tuple[float, float]]
) -> None:
    assert looked(*looks, end=end) == stuck


def test_lanes_are_counted_one_by_one() -> None:
    times = StuckTimes()
    times.look(1, {0: 0, 1: 0}, {0: 5, 1: 5})
    times.look(2, {0: 5, 1: 0}, {0: 5, 1: 5})
    times.look(3, {0: 5, 1: 5, 2: 0}, {0: 5, 1: 5})

    assert times.end(9) == [
        StuckTime(partition=0, began=1, ended=2),
        StuckTime(partition=1, began=1, ended=3),
    ]


@pytest.mark.parametrize(
    ("began", "ended", "counted"),
    [
        (10.0, 15.0, 5.0),  # during the fault
        (15.0, 40.0, 25.0),  # from the fault until the lane moves again
        (2.0, 14.0, 4.0),  # since before the fault: counted from its beginning
        (2.0, 40.0, 30.0),
        (20.0 + AFTERMATH_SECONDS / 2, 33.5, 13.0),  # right after it
        (20.0 + AFTERMATH_SECONDS, 40.0, 0.0),  # later
        (2.0, 10.0, 0.0),  # before
    ],
)
def test_a_fault_from_10_to_20_has_the_times_that_touch_it(began: float, ended: float, counted: float) -> None:
    stuck = [StuckTime(partition=0, began=began, ended=ended)]

    assert longest_by_fault(stuck, [FaultSpan(kind="cut", began=10, ended=20)]) == {"cut": counted}


def test_a_kind_has_the_longest_of_all_lanes_and_of_all_its_faults() -> None:
    stuck = [
        StuckTime(partition=0, began=1, ended=3),
        StuckTime(partition=1, began=1, ended=4),
        StuckTime(partition=0, began=11, ended=12),
    ]
    faults = [
        FaultSpan(kind="cut", began=1, ended=1),
        FaultSpan(kind="cut", began=11, ended=11),
        FaultSpan(kind="kill", began=11, ended=11),
        FaultSpan(kind="pause", began=50, ended=51),
    ]

    assert longest_by_fault(stuck, faults) == {"cut": 3.0, "kill": 1.0, "pause": 0.0}
