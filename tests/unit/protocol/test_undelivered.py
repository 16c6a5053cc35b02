"""What a batch passes without a record, and lanes that stop before a large one that the source's log holds there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState, Stop
from mirrorless.lanes.gaps import gaps_of
from mirrorless.protocol.admission import Waiting
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.protocol.undelivered import (
    LARGE_BYTES,
    NEAR_BYTES,
    UndeliveredRecords,
    gaps_of_batch,
    near_offsets,
)
from mirrorless.records.record import Record
from tests.support.oversize_world import MemoryCommittedLog, large
from tests.support.protocol_world import TOPIC, T, World, lane, records, replicate

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


# The replicator


def world(*partitions: tuple[int, ...]) -> World:
    """Partitions of nine records each, of which some are large."""
    return World(
        {
            partition: [large(each, LARGE_BYTES) if each in some else records(each)[0] for each in range(9)]
            for partition, some in enumerate(partitions)
        }
    )


def looking(there: World, *, from_log_start: bool = True) -> tuple[Replicator, MemoryCommittedLog]:
    """An environment that looks at what its mapping left out."""
    replicator, log = there.environment(), MemoryCommittedLog(there)
    replicator.undelivered = UndeliveredRecords(log=log, from_log_start=from_log_start)
    return replicator, log


def test_a_lane_stops_before_a_large_record_that_its_mapping_passed_and_the_others_go_on() -> None:
    """And it stays there: behind the stop nothing is looked at again."""
    there = world((4,), ())
    environment, log = looking(there)

    outcome = replicate(environment, there.batch(p0=[0, 1, 2, 3, 5, 6], p1=[0, 1]))
    reads = log.reads
    again = replicate(environment, there.batch(p0=[0, 1, 2, 3, 5, 6], p1=[2]))

    stop = outcome.stopped[PLACE]
    assert (stop.reason, stop.upstream_offset) == ("undelivered", 4)
    assert stop.detail == (
        "its mapping does not deliver the record here, of 2,359,299 bytes: 3,145,743 in an event, which has 6 MB at "
        "most"
    )
    assert again.stopped == {PLACE: stop}
    assert (there.visible(0), there.visible(1)) == ([0, 1, 2, 3], [0, 1, 2])
    assert (reads, log.reads) == (1, 1)
    assert there.states.states[lane()].stop == stop
    there.assert_invariants()


@pytest.mark.parametrize(
    ("offsets", "from_log_start", "stops_at"),
    [([3, 4], True, 1), ([3, 4], False, None), ([0, 3], False, 1)],
)
def test_where_a_lane_begins_decides_what_of_its_log_was_passed(
    offsets: list[int], stops_at: int | None, *, from_log_start: bool
) -> None:
    there = world((1,))
    environment, _ = looking(there, from_log_start=from_log_start)

    stop = replicate(environment, there.batch(p0=offsets)).stopped.get(PLACE)

    assert (stop and stop.upstream_offset) == stops_at


def test_what_is_not_large_stops_nothing_and_is_left_to_the_check_of_gaps() -> None:
    there = World({0: [*records(*range(4)), large(4, LARGE_BYTES - 20), *records(6)]})  # 5: a marker
    environment, log = looking(there)

    assert replicate(environment, there.batch(p0=[0, 2, 6])).stopped == {}

    assert log.reads == 1
    assert gaps_of(there.runs()[0], 0) == [(1, 2), (3, 6)]


@pytest.mark.parametrize("first", [1, 2])
def test_a_batch_that_nobody_can_read_stops_its_lane_in_a_gap_too(first: int) -> None:
    there = world((), ())
    there.damaged[0] = (first, 4)
    environment, _ = looking(there)

    stop = replicate(environment, there.batch(p0=[0, 5], p1=[0, 8])).stopped[PLACE]

    assert (stop.reason, stop.upstream_offset) == ("undelivered", first)
    assert stop.detail == (
        "its mapping does not deliver the batch here, which nobody can read: its checksum is another one"
    )
    assert (there.visible(0), there.visible(1)) == ([0], [0, 8])


def test_a_lane_goes_as_far_as_its_log_was_read_and_the_rest_comes_again() -> None:
    """A large one behind that stops it then."""
    there = world((6,), ())
    environment, log = looking(there)
    event = there.batch(p0=[0, 3, 8], p1=[0, 8])
    log.ends_at = 5

    outcome = replicate(environment, event)

    assert (there.visible(0), there.visible(1)) == ([0, 3], [0])
    assert {place[1]: each.upstream_offset for place, each in outcome.waiting.items()} == {0: 5, 1: 5}
    assert [there.head(partition).position for partition in (0, 1)] == [5, 5], "it is not read again"
    assert {state.waiting for state in there.states.states.values()} <= {None}, "no job brings it"
    log.ends_at = 9
    assert replicate(environment, event).stopped[PLACE].upstream_offset == 6
    assert (there.visible(0), there.visible(1)) == ([0, 3], [0, 8])


def test_a_record_that_the_target_refuses_before_it_is_the_stop() -> None:
    there = world((4,))
    there.cluster.refuses = lambda _, __, record: record.value == b"2"

    stop = replicate(looking(there)[0], there.batch(p0=[0, 1, 2, 3, 5])).stopped[PLACE]

    assert (stop.reason, stop.upstream_offset) == ("refused", 2)


def test_lanes_that_stopped_or_wait_in_any_portion_are_in_the_outcome() -> None:
    stop = Stop(reason="refused", upstream_offset=5, detail="too large", at=T)
    waiting = Waiting(upstream_offset=6, detail="job run backfill-7 has this lane", hint="wait")
    first = BatchOutcome(runs=(), stopped={(TOPIC, 0): stop}, waiting={(TOPIC, 1): waiting})
    last = BatchOutcome(runs=(), stopped={(TOPIC, 2): stop}, waiting={(TOPIC, 3): waiting})

    both = last.after(first)

    assert both.stopped == {(TOPIC, 0): stop, (TOPIC, 2): stop}
    assert both.waiting == {(TOPIC, 1): waiting, (TOPIC, 3): waiting}
    assert last.after(None) is last
