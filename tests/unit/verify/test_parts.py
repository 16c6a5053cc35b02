"""A lane in parts: wherever it is cut, its verdict is that on the whole lane."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.jobs.request import Bound
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.parts import LEAST_BYTES, SECTION_BYTES, section_bytes
from tests.support.chains import LANE
from tests.support.tries import tries
from tests.support.verified_lane import VerifiedLane, numbered

OPTIONS = st.fixed_dictionaries(
    {
        "against_source": st.booleans(),
        "target_compacts": st.sampled_from((False, False, True)),
        "delivery": st.sampled_from(("exactly_once", "exactly_once", "at_least_once")),
        "start": st.sampled_from((Bound("earliest"), Bound("earliest"), Bound("offset", 7), Bound("timestamp", 1_004))),
        "end": st.sampled_from((Bound("latest"), Bound("latest"), Bound("offset", 15))),
    }
)


@st.composite
def lanes(draw: st.DrawFn) -> VerifiedLane:
    """A lane with faults of every kind, gaps, losses, a reset, expired links, a doubt, and a log that begins later."""
    lane = VerifiedLane()
    lane.source.chunk, lane.target.chunk = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    number = 0
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=10))
    turn = draw(st.integers(0, len(sizes) * 4))
    for count, size in enumerate(sizes):
        if count == turn:
            lane.reset(lane.source.next)
        written = lane.write(*(numbered(number + i) for i in range(size)))
        number += size
        if draw(st.integers(0, 9)) == 0:
            at = written[0].offset
            loss = Loss(lane=LANE, generation=0, first=at, next=at + 1, cause="oversize", detail="too large", at=0)
            lane.ledger.note(loss)
        kept = [each for each in written if draw(st.integers(0, 9))] or written
        lane.replicate(kept, batch=draw(st.sampled_from((0, 0, 1, 3))), passed=draw(st.booleans()))
    if draw(st.integers(0, 3)) == 0:
        lane.replicate(lane.write(numbered(900)), state="prepared", visible=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 5))):
        _harm(draw, lane)
    for link in [each for each in lane.chains.of(LANE) if isinstance(each, Run)][1:-1]:
        if draw(st.integers(0, 14)) == 0:
            lane.chains.replace_link(link, None)
    if draw(st.integers(0, 4)) == 0:
        lane.target.start = draw(st.integers(0, lane.target.next))
        lane.target.records = {at: each for at, each in lane.target.records.items() if at >= lane.target.start}
    if draw(st.integers(0, 4)) == 0:
        lane.source.start = draw(st.integers(0, lane.source.next))
    lane.source.silent = False
    return lane


def _harm(draw: st.DrawFn, lane: VerifiedLane) -> None:
    offsets = list(lane.target.records)
    if len(offsets) < 2:
        return
    at = draw(st.integers(0, len(offsets) - 2))
    here, there = offsets[at], offsets[at + 1]
    one, other = lane.target.records[here], lane.target.records[there]
    match draw(st.sampled_from(("drop", "change", "swap", "again", "strange", "move", "many"))):
        case "drop":
            lane.drop(here)
        case "change":
            lane.change(here, changed(one, value=b"changed"))
        case "swap":
            lane.change(here, other)
            lane.change(there, one)
        case "again":
            lane.insert(draw(st.integers(here + 1, lane.target.next)), one)
        case "strange":
            lane.insert(draw(st.integers(0, lane.target.next)), numbered(draw(st.integers(800, 802))))
        case "move":
            lane.drop(here)
            lane.insert(draw(st.integers(0, lane.target.next)), one)
        case _:
            for each in offsets[at : at + draw(st.integers(2, 12))]:
                lane.change(each, changed(lane.target.records[each], timestamp=7))


def content(verdict: LaneVerdict) -> object:
    """All of a verdict but what reading took. Findings of one lane have no order of their own."""
    findings = sorted(repr(each) for each in verdict.findings)
    return verdict.counts, findings, sorted(verdict.notes), verdict.segments, verdict.generation, verdict.position


@settings(max_examples=tries(80, many=300))
@given(lane=lanes(), options=OPTIONS, data=st.data())
def test_wherever_a_lane_is_cut_its_verdict_is_that_on_the_whole(
    lane: VerifiedLane, options: dict[str, Any], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirrorless.verify.lane.HIDDEN_SECONDS", 0.0)
        whole = lane.verify(**options)
        cut, _ = lane.verify_in_parts(lambda: data.draw(st.booleans()), **options)

    assert content(cut) == content(whole)


def test_a_lane_is_cut_by_bytes_and_every_run_stays_whole() -> None:
    lane = VerifiedLane()
    lane.copy([numbered(i) for i in range(40)], batch=4)
    runs = [each for each in lane.chains.of(LANE) if isinstance(each, Run)]

    verdict, count = lane.verify_in_parts(lambda: False, most=sum(each.bytes for each in runs) // 3)

    assert (count, verdict.counts.proved) == (3, 40)


def test_sections_are_smaller_where_cores_would_have_nothing_to_do() -> None:
    assert section_bytes(10**13, 8) == SECTION_BYTES
    assert section_bytes(4 * 10**9, 2) == 500_000_000
    assert section_bytes(1_000, 2) == LEAST_BYTES
