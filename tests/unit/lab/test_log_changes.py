"""The audit of a lane whose remote topic was deleted or truncated: what is planted there is found, and nothing else."""

from __future__ import annotations

import pytest

from lab.audit.log_changes import LogChanges, ResetPoint, compare_lane
from mirrorless.verify.comparison import RecordAt

FAULTS = ("lost", "duplicated", "reordered", "different")
SOURCE = [RecordAt(offset, b"%d" % offset) for offset in (0, 1, 2, 5, 6, 7, 8)]
"""3 and 4 are no records."""


def log(*numbers: int, first: int = 0) -> list[RecordAt]:
    return [RecordAt(first + place, b"%d" % number) for place, number in enumerate(numbers)]


def found(target: list[RecordAt], point: ResetPoint | None) -> dict[str, int]:
    comparison = compare_lane(SOURCE, target, point)
    return {fault: getattr(comparison, fault) for fault in FAULTS if getattr(comparison, fault)}


RECREATED = ResetPoint(upstream=0, downstream=0, kept=False)
LATER = ResetPoint(upstream=5, downstream=0, kept=False)
TRUNCATED = ResetPoint(upstream=5, downstream=3, kept=True)


@pytest.mark.parametrize(
    ("point", "target"),
    [
        (None, log(0, 1, 2, 5, 6, 7, 8)),
        (RECREATED, log(0, 1, 2, 5, 6, 7, 8)),
        (LATER, log(5, 6, 7, 8)),
        (TRUNCATED, log(0, 1, 2, 5, 6, 7, 8)),
    ],
)
def test_a_lane_that_has_every_record_from_its_reset_on_has_no_fault(
    point: ResetPoint | None, target: list[RecordAt]
) -> None:
    assert found(target, point) == {}


@pytest.mark.parametrize("point", [None, RECREATED])
def test_a_lane_without_a_reset_and_one_that_was_reset_to_its_first_record_are_expected_whole(
    point: ResetPoint | None,
) -> None:
    assert found(log(5, 6, 7, 8), point) == {"lost": 3}


@pytest.mark.parametrize(
    ("newest", "fault"),
    [
        ((6, 7, 8), "lost"),
        ((5, 6, 8), "lost"),
        ((5, 6, 7), "lost"),
        ((5, 6, 6, 7, 8), "duplicated"),
        ((5, 7, 6, 8), "reordered"),
        ((5, 6, 99, 8), "different"),
    ],
)
@pytest.mark.parametrize("older", [(), (0, 1, 2)])
def test_a_fault_behind_the_reset_is_found(older: tuple[int, ...], newest: tuple[int, ...], fault: str) -> None:
    point = ResetPoint(upstream=5, downstream=len(older), kept=bool(older))

    assert found(log(*older, *newest), point) == {fault: 1}


def test_records_that_the_reset_left_out_may_not_be_behind_it() -> None:
    """Someone without the new generation's start wrote there."""
    assert found(log(2, 5, 6, 7, 8), LATER) == {"different": 1}


@pytest.mark.parametrize(
    ("older", "fault"), [((0, 2), "lost"), ((0, 1, 1, 2), "duplicated"), ((1, 0, 2), "reordered"), ((0, 1, 9), None)]
)
def test_a_fault_before_the_reset_of_a_topic_that_kept_its_records_is_found(
    older: tuple[int, ...], fault: str | None
) -> None:
    point = ResetPoint(upstream=5, downstream=len(older), kept=True)

    assert found(log(*older, 5, 6, 7, 8), point) == ({fault: 1} if fault else {"different": 1})


def test_a_run_in_doubt_that_a_truncation_removed_and_the_reset_copied_again_is_no_fault() -> None:
    """The run's records stood before the reset and stand behind it: the target has one of the two."""
    assert found(log(0, 1, 2, 5, 6, 5, 6, 7, 8), ResetPoint(upstream=5, downstream=5, kept=True)) == {}


def test_what_went_with_a_deleted_topic_is_not_expected_but_what_came_before_its_reset_may_not_be_wrong() -> None:
    """Written into the new topic before the lane was stopped: a part of the source, in order."""
    assert found(log(7, 8, 0, 1, 2, 5, 6, 7, 8), ResetPoint(upstream=0, downstream=2, kept=False)) == {}
    assert found(log(8, 7, 0, 1, 2, 5, 6, 7, 8), ResetPoint(upstream=0, downstream=2, kept=False)) == {"reordered": 1}
    assert found(log(7, 7, 0, 1, 2, 5, 6, 7, 8), ResetPoint(upstream=0, downstream=2, kept=False)) == {"duplicated": 1}


def test_records_that_a_truncation_removed_count_as_arrived_once() -> None:
    """A broker that is killed soon after a truncation shows them again."""
    changes = LogChanges(removed={0: log(0, 1, 2)})

    assert changes.arrived(0, log(5, 6, first=3)) == log(0, 1, 2, 5, 6)
    assert changes.arrived(0, log(2, 5, 6, first=2)) == log(0, 1, 2, 5, 6)
    assert changes.arrived(0, []) == log(0, 1, 2)
    assert changes.arrived(1, log(0)) == log(0)
