"""The order to move a group back: for a group without members, and only from offsets that this flow committed."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from mirrorless.groups.move_back import Move, NotMovable, claim_of, plan_move_back
from mirrorless.lane import FlowName, Lane
from mirrorless.ports.kafka import OffsetAndMetadata

FLOW = FlowName("us-east", "eu-west")
FIRST, SECOND = Lane(FLOW, "orders", 0), Lane(FLOW, "orders", 1)
OFFSETS = {"orders": {0: GroupOffset(10, 11, "exact", "note"), 1: GroupOffset(7, 7, "next_record")}}


def document(**more: Any) -> GroupCheckpoints:
    """Of a group that was rewound from 90 to 10 in the first of two partitions."""
    own = {"orders": {0: (80, 91), 1: (7,)}}
    about: dict[str, Any] = {"direction": "forward", "readiness": "ahead_on_target", "offsets": OFFSETS, "own": own}
    return GroupCheckpoints(group="shop", at=1, **(about | more))


def plan(group: GroupCheckpoints, *, first: int = 91, second: int | None = 7, state: Any = "empty") -> list[Move]:
    there = {FIRST: OffsetAndMetadata(first)}
    if second is not None:
        there[SECOND] = OffsetAndMetadata(second)
    return plan_move_back(group, FLOW, there=there, state=state, count=lambda _, low, high: (high - low) // 2)


def test_only_the_partitions_that_would_skip_records_are_moved() -> None:
    moves = plan(document())

    assert moves == [Move(lane=FIRST, now=91, to=OffsetAndMetadata(11, "note"), records=40)]
    assert claim_of(document(), moves).offsets == {"orders": {0: 11}}
    assert claim_of(document(), moves).key == "claim/forward/shop"


@pytest.mark.parametrize("first", [11, 12, 3])
def test_where_no_record_would_be_skipped_there_is_nothing_to_move(first: int) -> None:
    """Behind, at the same place, or beyond a marker alone; and no refusal is needed."""
    assert plan(document(own={}), first=first, state="active") == []


def test_a_group_with_members_is_refused() -> None:
    with pytest.raises(NotMovable, match="it has members"):
        plan(document(), state="active")


@pytest.mark.parametrize("own", [{}, {"orders": {0: (80, 90), 1: (7,)}}])
def test_a_group_whose_offset_this_flow_did_not_commit_is_refused(own: Any) -> None:
    with pytest.raises(NotMovable, match="offset 91 of us-east->eu-west orders-0"):
        plan(document(own=own))


def test_a_group_with_another_offset_in_one_partition_is_refused_whole() -> None:
    with pytest.raises(NotMovable, match="offset 8 of"):
        plan(document(), second=8)


def test_a_partition_without_a_translation_stays() -> None:
    """Before the map there is no exact place to move to."""
    offsets = {"orders": {0: GroupOffset(10, 50, "before_map")}}

    assert plan(document(offsets=offsets), second=None) == []


def test_the_way_back_moves_on_the_source() -> None:
    moves = plan(document(direction="reverse", offsets={"orders": {0: GroupOffset(11, 10, "exact")}}), second=None)

    assert [(move.now, move.to.offset) for move in moves] == [(91, 11)]
