"""What a batch passes without a record, and the batch with what the source's log holds there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirrorless.lane_state import NEW_LANE, Head, LaneState, Stop
from mirrorless.ports.kafka import RangesRead
from mirrorless.protocol.event import Batch
from mirrorless.protocol.gap_merge import NEAR_BYTES, Portion, gaps_of_batch, merged, near_offsets
from mirrorless.record import Record
from tests.support.protocol_world import TOPIC, T, records

AT_3 = Head(generation=0, position=3)
PLACE = (TOPIC, 0)


def stopped_at(offset: int) -> LaneState:
    return LaneState(stop=Stop(reason="refused", upstream_offset=offset, detail="too large", at=T))


@pytest.mark.parametrize(
    ("head", "offsets", "from_log_start", "expected"),
    [
        (AT_3, [5, 7], False, [(3, 5), (6, 7)]),
        (AT_3, [3, 4, 5], False, []),
        (AT_3, [1, 2], False, []),
        (AT_3, [1, 5], False, [(3, 5)]),
        # Where a flow began with a lane, only its mapping's group shows: at the first record, or where the log begins.
        (NEW_LANE, [5, 7], False, [(6, 7)]),
        (NEW_LANE, [5], False, []),
        (NEW_LANE, [5, 7], True, [(0, 5), (6, 7)]),
    ],
)
def test_a_gap_is_what_a_batch_passes_from_the_position_on(
    head: Head, offsets: list[int], expected: list[tuple[int, int]], *, from_log_start: bool
) -> None:
    assert gaps_of_batch(head, LaneState(), records(*offsets), from_log_start=from_log_start) == expected


@pytest.mark.parametrize(
    ("stop", "offsets", "expected"), [(6, [3, 9], [(4, 6)]), (4, [3, 9], []), (4, [3, 4, 9], []), (9, [3, 9], [(4, 9)])]
)
def test_no_gap_reaches_a_stop(stop: int, offsets: list[int], expected: list[tuple[int, int]]) -> None:
    assert gaps_of_batch(AT_3, stopped_at(stop), records(*offsets), from_log_start=False) == expected


def sized(size: int) -> Record:
    return Record(offset=0, timestamp=T, headers=[], key=None, value=bytes(size))


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        ([[sized(1024)] * 3, [sized(2048)] * 3], NEAR_BYTES // 1536),
        ([[sized(1024)] * 100 + [sized(1 << 20)]], NEAR_BYTES // 1024),
        ([[sized(1)]], NEAR_BYTES),
        ([[sized(NEAR_BYTES + 1)]], 1),
        ([[sized(0)]], NEAR_BYTES),
        ([], 1),
    ],
)
def test_gaps_are_near_each_other_by_the_size_of_the_first_records(
    lanes: Sequence[Sequence[Record]], expected: int
) -> None:
    assert near_offsets(lanes) == expected


def portion(offsets: list[int], gaps: list[tuple[int, int]], read: RangesRead | None) -> Portion:
    batch = Batch.of_topic(TOPIC, {0: records(*offsets), 1: records(8)})
    return merged(batch, {PLACE: gaps}, {} if read is None else {PLACE: read})


def offsets_of(batch: Batch | None) -> list[int]:
    return [] if batch is None else [each.offset for each in batch.records_of(PLACE)]


@pytest.mark.parametrize(
    ("read", "taken", "rest", "covered", "unread"),
    [
        # Gaps [0, 3) and [4, 6), records 3 and 6.
        (RangesRead(until=6, records=records(1, 5)), [1, 3, 5, 6], [], None, []),
        (RangesRead(until=9), [3, 6], [], None, []),
        (RangesRead(until=5, records=records(1)), [1, 3], [6], 5, []),
        (RangesRead(until=3, records=records(1)), [1], [3, 6], 3, []),
        (RangesRead(until=2, records=records(1)), [1], [3, 6], 2, []),
        (RangesRead(until=0), [], [3, 6], 0, [PLACE]),
        (RangesRead(until=-1), [], [3, 6], 0, [PLACE]),
        (None, [], [3, 6], 0, [PLACE]),
    ],
)
def test_a_lane_goes_as_far_as_its_log_was_read(
    read: RangesRead | None, taken: list[int], rest: list[int], covered: int | None, unread: list[tuple[str, int]]
) -> None:
    gaps = [(0, 3), (4, 6)]

    found = portion([3, 6], gaps, read)

    assert (offsets_of(found.batch), offsets_of(found.rest)) == (taken, rest)
    assert (found.rest is None) == (not rest), "nothing is left to do"
    assert found.batch.covered.get(PLACE) == covered
    assert found.unread({PLACE: gaps}) == unread
    assert [each.offset for each in found.batch.records_of((TOPIC, 1))] == [8]


@pytest.mark.parametrize(("log_start", "examined"), [(2, [PLACE]), (3, [PLACE]), (4, [])])
def test_gaps_below_the_start_of_the_log_are_not_examined(log_start: int, examined: list[tuple[str, int]]) -> None:
    found = portion([5], [(3, 5)], RangesRead(until=5, log_start=log_start))

    assert sorted(found.examined) == examined
