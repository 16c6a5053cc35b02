"""Lanes that one task copies at the same time."""

from __future__ import annotations

from spark.jobs.lane_groups import TOGETHER, side_by_side


def test_every_lane_has_one_task_and_no_slot_is_idle_while_a_task_has_several() -> None:
    for count in range(1, 40):
        for slots in range(1, 9):
            groups = side_by_side(count, slots)
            assert sorted(number for group in groups for number in group) == list(range(count))
            assert all(1 <= len(group) <= TOGETHER for group in groups)
            assert len(groups) >= min(count, slots)
            first = [number for group in groups[:slots] for number in group]
            assert sorted(first) == list(range(min(count, slots * TOGETHER))), (
                "what is first in the plan is begun first"
            )
