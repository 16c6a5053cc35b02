"""Orphans in the ledger: the work that is left, and what is withheld of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.losses import Loss
from mirrorless.reconcile.conflicts import SLICE_OFFSETS, ConflictSlice, reads_of, since_of, slices_of
from mirrorless.reconcile.copy_tasks import ReconciledLane
from mirrorless.reconcile.findings import LaneInspection
from mirrorless.reconcile.orphans import Stretch, orphaned, to_do, withheld, withholding
from mirrorless.reconcile.ranges import united, within, without
from tests.support.chains import LANE, MemoryLossLedger
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

    def reads(*, end: int | None, copied: bool) -> list[tuple[str, str, OffsetRange]]:
        found = reads_of(SETTINGS, 3, inspection, orphans, outage.chains, end=end, copied=copied)
        assert {each.lane for each in found} == {3}
        return [(each.side, each.topic, each.wanted) for each in found]

    assert reads(end=20, copied=True) == [("source", HERE, OffsetRange(5, 20))]
    assert reads(end=None, copied=False) == [
        ("source", HERE, OffsetRange(5, 8)),
        ("target", THERE, OffsetRange(2, 3)),
        ("target", THERE, OffsetRange(7, 9)),
    ]


def test_slices_of_a_read_cover_it_with_what_reaches_into_each() -> None:
    end = 2 * SLICE_OFFSETS + 5
    orphans = (OffsetRange(3, 4), OffsetRange(SLICE_OFFSETS - 1, SLICE_OFFSETS + 1))
    task = ConflictSlice(
        settings=SETTINGS,
        lane=0,
        side="source",
        topic=HERE,
        partition=0,
        wanted=OffsetRange(3, end),
        orphans=orphans,
        skipped=(OffsetRange(end - 1, end),),
    )
    slices = list(slices_of(task))
    assert [(each.wanted.first, each.wanted.next) for each in slices] == [
        (3, SLICE_OFFSETS + 3),
        (SLICE_OFFSETS + 3, 2 * SLICE_OFFSETS + 3),
        (2 * SLICE_OFFSETS + 3, end),
    ]
    assert [each.orphans for each in slices] == [orphans, (), ()]
    assert [each.skipped for each in slices] == [(), (), (OffsetRange(end - 1, end),)]
