"""What a batch passes without a record, and the batch with what the source's log holds there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState, LeftOut, Stop
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import RangesRead, TopicPartition
from mirrorless.protocol.admission import Waiting
from mirrorless.protocol.event import Batch
from mirrorless.protocol.gap_merge import NEAR_BYTES, Portion, gaps_of_batch, merged, near_offsets
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable
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


def portion(offsets: list[int], gaps: list[tuple[int, int]], read: RangesRead | None) -> Portion:
    batch = Batch.of_topic(TOPIC, {0: records(*offsets), 1: records(8)})
    return merged(batch, {PLACE: gaps}, {} if read is None else {PLACE: read}, ordered=lambda *_: False)


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


# The replicator


@dataclass
class StoredLog:
    """Implements `CommittedLog`: one record of a gap is read at a time, and nothing of some partitions."""

    records: dict[int, list[Record]]
    silent: Collection[int] = ()
    damaged: Mapping[int, BatchUnreadable] = field(default_factory=dict)
    reads: int = 0

    def read(
        self, ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]], deadline: Deadline, *, near: int, size: int
    ) -> dict[TopicPartition, RangesRead]:
        """See `CommittedLog.read`."""
        self.reads += 1
        shown = {place: gaps for place, gaps in ranges.items() if place[1] not in self.silent}
        return {place: self._first(place[1], gaps) for place, gaps in shown.items()}

    def _first(self, partition: int, gaps: Sequence[tuple[int, int]]) -> RangesRead:
        found = [
            each
            for each in self.records[partition]
            if any(first <= each.offset < following for first, following in gaps)
        ]
        until = found[0].offset + 1 if len(found) > 1 else gaps[-1][1]
        bad = self.damaged.get(partition)
        if bad is not None and gaps[0][0] < (bad.next or bad.offset + 1) and bad.offset < until:
            return RangesRead(
                until=bad.offset, records=[each for each in found[:1] if each.offset < bad.offset], damage=bad
            )
        return RangesRead(until=until, records=found[:1])


def reading(there: World, **options: Any) -> tuple[Replicator, StoredLog]:
    """An environment that reads gaps at the source."""
    replicator, log = there.environment(), StoredLog(there.source, **options)
    replicator.from_log_start, replicator.gap_log = True, log
    return replicator, log


@pytest.mark.parametrize("cause", ["", "DAMAGED"])
@pytest.mark.parametrize("first", [0, 2])
def test_a_damaged_batch_in_a_gap_stops_its_lane_and_an_order_leaves_it_out(first: int, cause: str) -> None:
    """At the beginning of the gap, and behind a record of it; the other lane goes on."""
    there = World({0: records(*range(first), 5, 6, 8), 1: records(*range(9))})
    bad = BatchUnreadable("its checksum is another one", offset=first, following=5)
    environment, _ = reading(there, damaged={0: bad})
    event = there.batch(p0=[8], p1=[0, 8])

    for _ in range(2):  # it stays where it is
        outcome = environment.replicate(event, request="r", deadline=lambda: 60.0)
        stop = outcome.stopped[PLACE]
        assert (stop.reason, stop.upstream_offset, stop.cause) == ("refused", first, "DAMAGED")
        assert (there.visible(0), there.visible(1)) == (list(range(first)), list(range(9)))
        there.now += 61_000

    there.states.quarantine(lane(), LeftOut(first=first, next=first + 1, cause=cause, why=stop.detail))
    assert not reading(there, damaged={0: bad})[0].replicate(event, request="r", deadline=lambda: 60.0).stopped

    assert there.visible(0) == [*range(first), 5, 6, 8]
    (loss,) = there.ledger.read(lane())
    assert (loss.first, loss.next, loss.cause) == (first, 5, "quarantined")
    assert there.chains.beside().heads([lane()])[lane()].position == 9


def test_a_batch_whose_gaps_are_large_goes_in_portions_to_its_end_but_for_a_lane_that_stops() -> None:
    there = World({0: records(*range(8)), 1: records(*range(4)), 2: records(0)})
    there.cluster.refuses = lambda _, partition, each: partition == 1 and each.value == b"1"
    replicator, log = reading(there)

    # The others are too large for an event.
    outcome = replicate(replicator, there.batch(p0=[0, 4, 7], p1=[0, 3], p2=[0]))

    assert [there.visible(partition) for partition in range(3)] == [[*range(8)], [0], [0]]
    assert {place: stop.upstream_offset for place, stop in outcome.stopped.items()} == {(TOPIC, 1): 1}
    added = sorted((run.lane.partition, run.position) for run in outcome.runs)
    assert added == [
        (lane.partition, link.position) for lane in map(there.lane, range(3)) for link in there.chains.of(lane)
    ]
    assert {run.lane.partition for run in outcome.runs if run.examined} == {0, 1}
    assert log.reads == 5, "one for each record of a gap, and the stopped lane is read no more"
    there.assert_invariants()


def test_lanes_go_on_while_the_source_does_not_show_the_gaps_of_others_which_come_again() -> None:
    there = World({0: records(*range(3)), 1: records(*range(3))})
    replicator, log = reading(there, silent=[1])

    with pytest.raises(Retriable, match=r"orders-1 @ 0: the source did not show in time what stands in a gap"):
        replicate(replicator, there.batch(p0=[2], p1=[2]))

    assert there.visible(0) == [0, 1, 2]
    log.silent = ()
    replicate(replicator, there.batch(p0=[2], p1=[2]))
    assert there.visible(1) == [0, 1, 2]
    there.assert_invariants()


def test_a_lane_whose_gaps_are_read_waits_for_no_job_but_the_one_that_brings_its_history() -> None:
    """What a job left out where it died is in a gap; what lies before a lane without a chain is not."""
    there = World({0: records(*range(20))})
    there.history_first = True
    replicator, _ = reading(there)
    assert replicate(replicator, there.batch(p0=[15])).waiting[PLACE].upstream_offset == 15
    there.lease(seconds=60)
    replicate(there.environment(job="backfill-1"), there.chunk(0, 6))
    there.now += 60_000  # it died, and never let go

    assert replicate(there.environment(), there.batch(p0=[15])).waiting[PLACE].upstream_offset == 15
    assert replicate(replicator, there.batch(p0=[15])).waiting == {}
    assert there.visible() == [*range(16)]
    there.assert_invariants()


def test_lanes_that_stopped_or_wait_in_any_portion_are_in_the_outcome() -> None:
    stop = Stop(reason="refused", upstream_offset=5, detail="too large", at=T)
    waiting = Waiting(upstream_offset=6, detail="job run backfill-7 has this lane", hint="wait")
    first = BatchOutcome(runs=(), stopped={(TOPIC, 0): stop}, waiting={(TOPIC, 1): waiting})
    last = BatchOutcome(runs=(), stopped={(TOPIC, 2): stop}, waiting={(TOPIC, 3): waiting})

    both = last.after(first)

    assert both.stopped == {(TOPIC, 0): stop, (TOPIC, 2): stop}
    assert both.waiting == {(TOPIC, 1): waiting, (TOPIC, 3): waiting}
    assert last.after(None) is last
