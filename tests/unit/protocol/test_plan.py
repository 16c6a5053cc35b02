"""A plan writes what lies at or above the position, up to the first obstacle, and drops nothing in silence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from mirrorless.chain.lane_state import RUNNING, Head, LaneState, LeftOut, Stop
from mirrorless.chain.run import Span
from mirrorless.errors import ChainBroken
from mirrorless.protocol.digest import digest, fingerprint
from mirrorless.protocol.outgoing import Element
from mirrorless.protocol.plan import LanePlan, plan_lane
from mirrorless.protocol.settle import Attempt, settle_lane
from mirrorless.records.record import Headers, Record
from tests.support.chains import LANE, run

NOW = 1_763_686_800_999
STANDING = Stop(reason="refused", upstream_offset=103, detail="too large", at=NOW - 1)


def record(offset: int, *, timestamp: int = NOW, headers: Headers | None = None) -> Record:
    return Record(offset=offset, timestamp=timestamp, headers=headers or [], key=b"k", value=str(offset).encode())


def records(*offsets: int) -> list[Record]:
    return [record(offset) for offset in offsets]


def plan(batch: list[Record], *, position: int = 100, state: LaneState = RUNNING) -> LanePlan:
    return plan_lane(LANE, Head(generation=0, position=position), state, batch, now=NOW)


def offsets(found: Iterable[Element]) -> list[int]:
    return [each.offset for each in found]


@pytest.mark.parametrize(
    ("batch", "replayed", "written", "following"),
    [
        ([100, 101, 102], [], [100, 101, 102], 103),
        ([98, 99, 100, 101], [98, 99], [100, 101], 102),
        ([98, 99], [98, 99], [], 100),
        ([105, 109], [], [105, 109], 110),
        ([90, 109], [90], [109], 110),
        ([], [], [], 100),
    ],
)
def test_records_below_the_position_are_held_back_and_the_rest_is_written(
    batch: list[int], replayed: list[int], written: list[int], following: int
) -> None:
    found = plan(records(*batch))

    assert (offsets(found.replayed), offsets(found.write), found.next) == (replayed, written, following)
    assert found.moves == bool(written)
    assert found.stop is None


def test_a_quarantined_offset_is_left_out_and_passed() -> None:
    found = plan(records(100, 101, 102), state=LaneState(quarantine=LeftOut.each(101, 102, 7)))

    assert (offsets(found.write), found.quarantined, found.next) == ([100], (101, 102), 103)


def test_a_lane_with_nothing_but_a_quarantined_record_moves() -> None:
    """Otherwise the mapping would deliver it for ever."""
    found = plan(records(100), state=LaneState(quarantine=LeftOut.each(100)))

    assert found.moves
    assert found.write == []


def test_a_quarantined_record_that_the_client_cannot_write_stops_nothing() -> None:
    found = plan([record(100, timestamp=0), record(101)], state=LaneState(quarantine=LeftOut.each(100)))

    assert found.stop is None
    assert offsets(found.write) == [101]


def test_a_standing_stop_lets_pass_what_lies_before_it() -> None:
    found = plan(records(101, 102, 103, 104), state=LaneState(stop=STANDING, quarantine=LeftOut.each(104)))

    assert (offsets(found.write), found.quarantined, found.stop) == ([101, 102], (), STANDING)


def test_a_batch_that_ends_before_the_stop_is_delivered_whole() -> None:
    """Answered as stopped, it would come again and again, though every record of it stands on the target."""
    found = plan(records(101, 102), state=LaneState(stop=STANDING))

    assert found.stop is None
    assert offsets(found.write) == [101, 102]


NOT_TEXT_REASON = (
    "the name of one of its headers is not UTF-8, or has the character U+FFFD by which what is not is replaced: it "
    "passes only inside a whole batch (`trigger: schedule`, or a backfill)"
)


@pytest.mark.parametrize(
    ("unwritable", "reason"),
    [
        (record(102, timestamp=0), "timestamp is 0"),
        (record(102, headers=[("fine", b"\0"), ("cut\0here", b"")]), "contains a NUL"),
        (
            record(102, headers=[("größe", b"1"), ("na\ufffdve", b"")]),
            NOT_TEXT_REASON,
        ),
    ],
)
def test_a_record_that_the_client_would_write_otherwise_stops_its_lane(unwritable: Record, reason: str) -> None:
    found = plan([*records(100, 101), unwritable, *records(103)])

    assert offsets(found.write) == [100, 101]
    assert found.stop is not None
    assert (found.stop.reason, found.stop.upstream_offset, found.stop.at) == ("refused", 102, NOW)
    assert reason in found.stop.detail


def test_a_timestamp_of_minus_one_is_written() -> None:
    """It says that the source has none; only 0 is the client's word for now."""
    assert plan([record(100, timestamp=-1)]).stop is None


ATTEMPT = Attempt(writer="mirrorless.us-east.eu-west.1", attempt="a1", request="request-1", now=NOW)


def test_a_settled_run_says_what_stands_where() -> None:
    batch = [record(101, timestamp=7), record(102, timestamp=5), record(104, timestamp=6)]

    run = settle_lane(plan([*records(99), *batch]), [517, 518, 520], ATTEMPT)

    assert (run.position, run.next, run.generation, run.state) == (100, 105, 0, "prepared")
    assert run.spans == (Span(101, 517, 2), Span(104, 520, 1))
    assert (run.writer, run.attempt, run.request, run.settled_at) == (ATTEMPT.writer, "a1", "request-1", NOW)
    assert (run.oldest_timestamp, run.newest_timestamp, run.records, run.bytes) == (5, 7, 3, 12)
    assert (run.digest, run.fingerprint) == (digest(batch), fingerprint(batch[-1]))


def test_a_settled_run_without_records_covers_what_was_quarantined() -> None:
    run = settle_lane(plan(records(100), state=LaneState(quarantine=LeftOut.each(100))), [], ATTEMPT)

    assert (run.position, run.next, run.spans, run.quarantined) == (100, 101, (), (100,))
    assert (run.fingerprint, run.digest, run.records) == (b"", b"", 0)
    assert (run.oldest_timestamp, run.newest_timestamp) == (-1, -1)


@pytest.mark.parametrize("downstream", [[517], [517, 518, 519], [517, 517], [518, 517], [-1, 518], [-1, 0]])
def test_deliveries_that_are_not_one_growing_offset_for_each_record_are_not_believed(downstream: list[int]) -> None:
    """The client makes offsets up where it has none; a map with a made-up offset would be wrong for ever."""
    with pytest.raises(ChainBroken, match=r"us-east->eu-west orders-0 @ 100"):
        settle_lane(plan(records(100, 101)), downstream, ATTEMPT)


# What a job has read itself


@pytest.mark.parametrize(
    ("batch", "covered", "stops", "following"),
    [([], 104, True, 100), ([101], 104, True, 102), ([], 103, False, 103), ([101], 103, False, 103)],
)
def test_a_stop_is_not_passed_where_no_record_is_left_behind_it(
    batch: list[int], covered: int, following: int, *, stops: bool
) -> None:
    """A lane in doubt that is stopped for it, above all: to write there would be a race that it loses each time."""
    head, state = Head(generation=0, position=100), LaneState(stop=STANDING)

    found = plan_lane(LANE, head, state, records(*batch), now=NOW, covered=covered)

    assert (found.stop == STANDING, found.next) == (stops, following)


def test_a_stop_at_the_beginning_of_a_log_is_not_reached_by_nothing() -> None:
    state = LaneState(stop=replace(STANDING, upstream_offset=1))

    assert plan_lane(LANE, Head(generation=0, position=0), state, [], now=NOW).stop is None


@pytest.mark.parametrize(("batch", "covered", "following"), [([100, 101], 105, 105), ([], 105, 105), ([], 90, 100)])
def test_a_job_passes_what_it_has_seen_to_hold_no_record(batch: list[int], covered: int, following: int) -> None:
    found = plan_lane(LANE, Head(generation=0, position=100), RUNNING, records(*batch), now=NOW, covered=covered)

    assert found.next == following
    assert found.moves == (following > 100)


def test_a_job_that_is_stopped_covers_nothing_beyond_the_stop() -> None:
    found = plan_lane(
        LANE, Head(generation=0, position=100), LaneState(stop=STANDING), records(102, 103), now=NOW, covered=110
    )

    assert (offsets(found.write), found.next) == ([102], 103)


ORDERED = LaneState(quarantine=LeftOut.each(101, 103, 105))


def test_the_first_part_of_a_plan_has_the_orders_before_its_end_and_covers_nothing_else() -> None:
    whole = plan_lane(LANE, Head(generation=0, position=100), ORDERED, records(*range(100, 106)), now=NOW, covered=200)
    whole = replace(whole, returned=(101, 104), filtered=(101, 104), stop=replace(STANDING, upstream_offset=150))

    part = whole.first(2)

    assert (offsets(part.write), part.quarantined) == ([100, 102], (101, 103))
    assert (part.returned, part.filtered) == ((101,), (101,))
    assert (part.stop, part.covered, part.next) == (None, 0, 104)
    assert whole.first(3) is whole


def test_what_is_left_of_a_plan_begins_behind_the_run_of_its_first_part() -> None:
    whole = replace(plan(records(*range(100, 106)), state=ORDERED), returned=(101, 103, 107), filtered=(101, 103, 108))
    written = run(100, 103, (100, 7, 1), (102, 8, 1))

    left = whole.behind(written)

    assert left.head == Head(generation=0, position=103, run=written)
    assert (offsets(left.write), left.quarantined) == ([104], (103, 105))
    assert (left.returned, left.filtered, left.next) == ((103, 107), (103, 108), 109)


def test_a_record_that_is_ordered_out_is_not_passed_while_the_stop_stands_before_it() -> None:
    found = plan(records(102, 103), state=LaneState(stop=STANDING, quarantine=LeftOut.each(103)))

    assert (offsets(found.write), found.quarantined, found.next) == ([102], (), 103)
