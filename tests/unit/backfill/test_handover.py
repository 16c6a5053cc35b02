"""A job lets go of a lane only when the mapping's next batch begins at or below the lane's position."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirrorless.backfill.handover import HandoverState, next_step, step_at_exact_end

AT_THE_END = HandoverState(position=100, end=100, waiting=None, committed=None, group="active", quiet_seconds=0.0)


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"waiting": 100}, "waiting"),
        ({"waiting": 101, "end": 110}, "copy"),
        ({"waiting": 101, "end": 110, "committed": 90}, "copy"),
        ({"committed": 90}, "committed"),
        ({"committed": 105, "end": 110}, "copy"),
        ({"committed": 105, "end": 110, "group": "empty"}, "copy"),
        ({"group": "empty"}, "pin"),
        ({"group": "absent"}, "pin"),
        ({"group": "absent", "end": 101}, "copy"),
        ({}, "copy"),
        ({"quiet_seconds": 119.0}, "copy"),
        ({"quiet_seconds": 120.0}, "idle"),
        ({"quiet_seconds": 120.0, "end": 101}, "copy"),
    ],
)
def test_a_lane_that_goes_on_to_the_end_is_let_go_where_its_mapping_shows_itself(
    changes: dict[str, object], step: str
) -> None:
    assert next_step(replace(AT_THE_END, **changes), idle_after=120.0) == step  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"waiting": 100, "end": 500}, "waiting"),
        ({"waiting": 101, "end": 500}, "hold"),
        ({"committed": 100, "end": 500}, "committed"),
        ({"committed": 101, "end": 500}, "hold"),
        ({"end": 500}, "hold"),
        ({"end": 500, "group": "absent"}, "pin"),
        ({"quiet_seconds": 120.0}, "idle"),
    ],
)
def test_a_lane_that_ends_as_ordered_is_held_where_its_mapping_would_skip(
    changes: dict[str, object], step: str
) -> None:
    assert step_at_exact_end(replace(AT_THE_END, **changes), idle_after=120.0) == step  # type: ignore[arg-type]  # by name
