"""Lanes that MirrorMaker 2 copied before: where chains begin, what the map says, what is given back and proved."""

from __future__ import annotations

import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.errors import LostRace
from mirrorless.lanes.taken_over import (
    link_behind,
    may_begin,
    read_given_back,
    was_taken_over,
    write_given_back,
)
from mirrorless.protocol.translate import OffsetMap
from mirrorless.verify.lane import TAKEN_OVER
from tests.support.chains import FLOW, LANE, reset, run
from tests.support.documents import MemoryDocuments
from tests.support.verified_lane import VerifiedLane, numbered


@pytest.mark.parametrize(
    ("head", "given_back_at", "may"),
    [
        (NEW_LANE, None, True),
        (Head(generation=1, position=40), None, False),
        (Head(generation=1, position=40), 40, True),
        (Head(generation=1, position=50), 40, False),
        (Head(generation=1, position=40, run=run(40, 50, state="prepared", generation=1)), 40, False),
    ],
)
def test_a_lane_is_mirrormakers_until_a_chain_goes_on_in_it(head: Head, given_back_at: int | None, may: object) -> None:
    assert may_begin(head, given_back_at) is may


def test_what_was_given_back_of_one_topic_stays_when_another_one_is() -> None:
    documents, other = MemoryDocuments(), Lane(FLOW, "payments", 3)

    write_given_back(documents, FLOW, {LANE: 40, other: 7})
    write_given_back(documents, FLOW, {LANE: 50})

    assert read_given_back(documents, FLOW) == {LANE: 50, other: 7}


def copied_by_mirrormaker(lane: VerifiedLane, first: int, following: int) -> None:
    """Records that have no run, some of them twice."""
    for number in [*range(first, following), *range(following - 2, following)]:
        lane.target.add(numbered(number))


def test_what_mirrormaker_copied_is_before_the_map_and_neither_proved_nor_foreign() -> None:
    lane = VerifiedLane()
    lane.write(*map(numbered, range(8)))
    copied_by_mirrormaker(lane, 0, 8)
    lane.chains.reset(link_behind(LANE, NEW_LANE, 8, now=1))
    with pytest.raises(LostRace):
        lane.chains.reset(link_behind(LANE, NEW_LANE, 5, now=1))
    nothing = lane.verification(against_source=True).verify()
    lane.replicate(lane.write(*map(numbered, range(8, 12))))
    # Given back, and taken over again.
    end = lane.chains.heads([LANE])[LANE]
    lane.write(*map(numbered, range(12, 16)))
    copied_by_mirrormaker(lane, 12, 16)
    lane.chains.reset(link_behind(LANE, end, lane.source.next, now=2))
    lane.replicate(lane.write(*map(numbered, range(16, 20))))

    verdict = lane.verification(against_source=True).verify()

    assert was_taken_over(lane.chains.at_or_before(LANE, 0, 0))
    assert OffsetMap(lane.chains).downstream(LANE, 3).state == "before_map"
    assert (nothing.findings, nothing.notes) == ([], [TAKEN_OVER])
    assert (verdict.findings, verdict.notes) == ([], [TAKEN_OVER])
    assert (verdict.counts.proved, verdict.counts.before_map) == (8, 6)


def test_an_operators_reset_is_no_taking_over() -> None:
    assert not was_taken_over(reset(0, 8))
    assert not was_taken_over(run(0, 8))
    assert not was_taken_over(None)
