"""Records of one side alone: what is an orphan, what only the target has, what a failback takes, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import TypeVar
from weakref import WeakSet

from hypothesis import given
from hypothesis import strategies as st

from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.reconcile.conflicts import conflict_task, since_of
from mirrorless.reconcile.difference import (
    RangesLook,
    Stretch,
    apart,
    claims_of,
    read_through,
    seen_in,
    united,
    within,
    without,
)
from mirrorless.reconcile.outcome import OrphanReader, forecast, readers_of
from mirrorless.reconcile.tasks import LaneInspection, ReconciledLane, orphaned, to_do, withheld, withholding
from mirrorless.records.record import Record
from spark.jobs.reconcile.topics import not_reconciled
from tests.support.chains import LANE, MemoryLossLedger, run
from tests.unit.reconcile.test_reconcile_property import HERE, SETTINGS, THERE, Outage

NAMES = ReconciledLane(forward=LANE, remote_topic=THERE, generation=0)

offsets = st.sets(st.integers(0, 40))


def ranges_of(some: set[int]) -> tuple[OffsetRange, ...]:
    """The same offsets as ranges."""
    return united(OffsetRange(each, each + 1) for each in some)


def offsets_of(ranges: tuple[OffsetRange, ...]) -> set[int]:
    """The same ranges as offsets."""
    return {offset for each in ranges for offset in range(each.first, each.next)}


@given(some=offsets, others=offsets)
def test_ranges_are_the_sets_of_their_offsets(some: set[int], others: set[int]) -> None:
    assert offsets_of(ranges_of(some)) == some
    assert offsets_of(without(ranges_of(some), ranges_of(others))) == some - others
    assert within(ranges_of(others), sorted(some)) == [each in others for each in sorted(some)]


@given(orphans=offsets, older=offsets, notes=st.integers(0, 100), position=st.integers(0, 40))
def test_a_ledger_that_is_divided_loses_no_orphan_wherever_it_stops(
    orphans: set[int], older: set[int], notes: int, position: int
) -> None:
    ledger = MemoryLossLedger()
    stretches = [Stretch(each.first, each.next, each.next - each.first, 1) for each in ranges_of(orphans)]
    for loss in orphaned(NAMES, "replay", stretches, at=1):
        ledger.note(loss)
    older &= orphans

    def left() -> tuple[set[int], set[int]]:
        losses: list[Loss] = ledger.read(LANE)
        return (
            offsets_of(to_do(NAMES, "replay", losses, position=position)),
            offsets_of(withheld(NAMES, losses)),
        )

    for loss in list(withholding(NAMES, ledger.read(LANE), ranges_of(older), at=2))[:notes]:
        ledger.note(loss)
    waiting, out = left()
    assert waiting == {each for each in orphans - out if each >= position}
    assert out <= older

    for loss in withholding(NAMES, ledger.read(LANE), ranges_of(older), at=3):
        ledger.note(loss)
    waiting, out = left()
    assert (waiting, out) == ({each for each in orphans - older if each >= position}, older)


def test_copies_beside_an_orphan_are_searched_from_where_they_were_joined() -> None:
    outage = Outage()
    outage.write(outage.source, HERE, [True, True])
    outage.replicate()
    outage.write(outage.target, THERE, [True])
    outage.reconcile(join=False)  # its copy stands at offset 3, behind a marker
    (orphan,) = outage.write(outage.source, HERE, [False, True])
    assert since_of(outage.chains, NAMES, orphan) == orphan
    outage.reconcile()
    assert since_of(outage.chains, NAMES, orphan) == 2


def test_what_is_new_is_read_on_the_target_until_it_is_copied_and_orphans_also_without_a_leader() -> None:
    outage = Outage()
    inspection = LaneInspection(
        topic=HERE, partition=0, remote_topic=THERE, position=5, tail=OffsetRange(7, 9), late=(OffsetRange(2, 3),)
    )
    orphans = (OffsetRange(6, 8),)

    def reads(*, end: int | None, copied: bool) -> tuple[OffsetRange, tuple[OffsetRange, ...]]:
        found = conflict_task(SETTINGS, inspection, orphans, outage.chains, end=end, copied=copied, files="")
        assert (found.topic, found.remote_topic, found.orphans) == (HERE, THERE, orphans)
        return found.wanted, found.on_target

    assert reads(end=20, copied=True) == (OffsetRange(5, 20), ())
    assert reads(end=None, copied=False) == (OffsetRange(5, 8), (OffsetRange(2, 3), OffsetRange(7, 9)))


T = TypeVar("T")


class Watched(list[tuple[str, bytes | None]]):
    """Headers of a record that shows whether it is held."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # one is no other, for a set


class WatchedRun(Run):
    """A run that shows the same."""


def test_a_chain_and_its_late_records_are_held_one_by_one() -> None:
    alive: WeakSet[object] = WeakSet()

    def watched(some: Iterator[T]) -> Iterator[T]:
        for each in some:
            alive.add(each.headers if isinstance(each, Record) else each)
            assert len(alive) < 5, "all of them are held"
            yield each

    plain = (run(at, at + 10, (at, at * 2, 10)) for at in range(0, 1_000, 10))
    runs = (WatchedRun(**{each.name: getattr(one, each.name) for each in fields(Run)}) for one in plain)
    claims = claims_of(watched(runs))
    assert (claims.records, len(claims.holes)) == (1_000, 99)

    records = (Record(at, 1, Watched(), b"k", b"v") for at in range(2_000))
    seen = seen_in(claims.holes, watched(records))
    assert (seen.records, seen.bytes, seen.ranges) == (990, 1_980, claims.holes)


@given(
    bounds=st.lists(st.integers(0, 60), unique=True, max_size=12).map(sorted),
    offsets=st.sets(st.integers(0, 60)),
    near=st.integers(0, 20),
)
def test_ranges_are_cut_to_their_records_whatever_is_read_through(
    bounds: list[int], offsets: set[int], near: int
) -> None:
    ranges = [OffsetRange(*each) for each in zip(bounds[::2], bounds[1::2], strict=False)]
    through = list(read_through(ranges, near=near))
    read = [
        Record(offset=at, timestamp=1, headers=[], value=b"1234")
        for each in through
        for at in sorted(offsets)
        if each.first <= at < each.next
    ]

    seen = seen_in(ranges, read)

    inside = [[at for at in sorted(offsets) if each.first <= at < each.next] for each in ranges]
    assert seen.ranges == tuple(OffsetRange(some[0], some[-1] + 1) for some in inside if some)
    assert (seen.records, seen.bytes) == (sum(map(len, inside)), 4 * sum(map(len, inside)))
    assert len(through) <= len(ranges)
    assert all(later.first - each.next > near for each, later in pairwise(through))


@given(
    bounds=st.lists(st.integers(0, 60), unique=True, max_size=12).map(sorted),
    offsets=st.sets(st.integers(0, 60)),
    ended=st.integers(0, 60),
    between=st.booleans(),
)
def test_a_look_that_goes_on_where_another_ended_sees_what_one_alone_does(
    bounds: list[int], offsets: set[int], ended: int, *, between: bool
) -> None:
    ranges = [OffsetRange(*each) for each in zip(bounds[::2], bounds[1::2], strict=False)]
    ranges = list(apart(ranges, OffsetRange(0, 61))) if between else ranges
    records = [Record(offset=at, timestamp=1, headers=[], value=b"1234") for at in sorted(offsets)]

    before = seen_in(ranges, (each for each in records if each.offset < ended))
    after = RangesLook(ranges, before)
    after.add(each for each in records if each.offset >= ended)

    assert after.seen() == seen_in(ranges, records)


def test_copies_of_a_job_have_markers_in_a_flow_without_transactions() -> None:
    """Every chunk of a backfill would be a hole to read otherwise."""
    by_job = [run(0, 10, (0, 0, 10)), run(10, 20, (10, 11, 10))]
    assert claims_of(by_job).holes == ()


def test_what_was_brought_back_before_is_no_hole_any_more() -> None:
    apart = [run(0, 10, (0, 0, 10)), run(10, 20, (10, 30, 10)), run(20, 30, (20, 60, 10))]
    assert claims_of(apart, since=35).holes == (OffsetRange(40, 60),)
    assert claims_of(apart, since=15).holes == (OffsetRange(15, 30), OffsetRange(40, 60))


def test_a_failback_takes_as_long_as_its_longest_lane_or_all_of_them_or_the_read() -> None:
    # Of 80 MB: 16 windows of 5 MB, and ten transactions of three round trips each.
    assert forecast([80_000_000], round_trip=0.1, bytes_per_second=0, at_a_time=8).seconds == 5
    assert forecast([80_000_000] * 16, round_trip=0.1, bytes_per_second=0, at_a_time=8).seconds == 10
    assert forecast([80_000_000], round_trip=0.1, bytes_per_second=1_000_000, at_a_time=8).seconds == 80
    assert forecast([0, 0], round_trip=0.1, bytes_per_second=1, at_a_time=8).seconds == 0


def test_groups_count_the_orphans_below_their_offsets() -> None:
    places = {"all": 30, "some": 13, "few": 11, "none": 10}
    committed = {group: {("orders", 0): OffsetAndMetadata(offset)} for group, offset in places.items()}
    orphans = {("orders", 0): [Stretch(10, 14, 4, 0), Stretch(20, 25, 5, 0)], ("orders", 1): [Stretch(0, 9, 9, 0)]}

    found = readers_of(committed | {"elsewhere": {}}, orphans)

    assert found == [OrphanReader("all", 9), OrphanReader("some", 3), OrphanReader("few", 1)]


def test_a_topic_that_stamps_records_itself_is_left_alone() -> None:
    assert "LogAppendTime" in not_reconciled({"message.timestamp.type": "LogAppendTime"})
    assert not_reconciled({}) == ""
