"""The port of MM2's offset translation passes MM2's own tests, so comparisons with it are fair."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.mm2_store import Sync, SyncStore, SyncWriter

LAG_50 = (
    (0, 100, True),
    (2, 102, True),
    (3, 152, False),
    (4, 153, True),
    (5, 154, False),
    (6, 203, False),
    (7, 204, True),
    (2, 206, True),
    (3, 207, False),
    (4, 3, True),
    (5, 4, False),
    (7, 6, True),
    (8, 7, False),
    (10, 57, True),
    (11, 58, False),
)
"""Upstream, downstream, and whether a sync is due, with `offset.lag.max` 50."""


def store_of(*syncs: tuple[int, int]) -> SyncStore:
    store = SyncStore()
    for sync in syncs:
        store.add(Sync(*sync))
    return store


# The writer


def test_a_sync_is_due_first_after_a_gap_after_a_rewind_and_when_the_last_one_is_too_far_behind() -> None:
    writer = SyncWriter(lag_max=50)

    assert [(u, d, writer.is_due(u, d)) for u, d, _ in LAG_50] == list(LAG_50)


@pytest.mark.parametrize(("lag_max", "count"), [(0, 1_000), (10, 91), (100, 10), (1_000, 1)])
def test_without_gaps_a_sync_is_due_after_every_lag_and_one(lag_max: int, count: int) -> None:
    writer = SyncWriter(lag_max=lag_max)

    assert sum(writer.is_due(offset, offset + 7) for offset in range(1_000)) == count


# The store


def test_an_offset_translates_to_the_place_of_its_sync_or_right_after_the_sync_below_it() -> None:
    store = store_of((100, 200))
    assert store.translate(150) == 201

    store.add(Sync(150, 251))
    assert store.translate(150) == 251
    assert store.translate(5) == -1

    store.add(Sync(200, 10))  # the target began anew
    assert store.translate(200) == 10

    store.add(Sync(20, 20))  # the source began anew
    assert store.translate(20) == 20


def test_nothing_is_translated_without_a_sync_or_before_the_syncs_of_the_past_are_read() -> None:
    store = SyncStore(started=False)
    assert store.translate(5) is None
    store.add(Sync(100, 200))
    assert [store.translate(offset) for offset in (0, 100, 200)] == [None, None, None]

    store.started = True
    assert [store.translate(offset) for offset in (0, 100, 200)] == [-1, 200, 201]


@pytest.mark.parametrize(
    ("only_the_last", "past", "live"),
    [
        (True, {1_000}, [1_000, 4_840, 6_760, 8_680, 9_160, 9_640, 9_880, 9_940, 9_970, 9_990, 10_000]),
        (False, {0, 480, 720, 990, 1_000}, [0, 3_840, 7_680, 8_640, 9_120, 9_600, 9_840, 9_900, 9_960, 9_990, 10_000]),
    ],
    ids=["a past that must not be used", "a past that may be used"],
)
def test_of_the_past_the_last_sync_remains_and_the_earliest_too_where_it_may_be_used(
    past: set[int], live: list[int], *, only_the_last: bool
) -> None:
    """Syncs at every tenth offset, to 1,000 before the start and to 10,000 after it."""
    store = SyncStore(started=False, only_the_last_of_the_past=only_the_last)
    for offset in range(0, 1_001, 10):
        store.add(Sync(offset, offset))
    store.started = True
    assert past <= {sync.upstream for sync in store.kept}
    assert not only_the_last or len(store.kept) == 1
    for offset in range(1_010, 10_001, 10):
        store.add(Sync(offset, offset))
    assert sorted(sync.upstream for sync in store.kept) == live


def test_an_upstream_rewind_makes_all_earlier_syncs_invalid() -> None:
    store = store_of(*((offset, offset) for offset in range(0, 10_001, 10)))

    store.add(Sync(1_500, 11_000))

    assert [store.translate(offset) for offset in (1_499, 1_500, 2_000)] == [-1, 11_000, 11_001]


@pytest.mark.parametrize("spacing", [1, 2, 3, 7, 10, 100, 1_000])
def test_evenly_spaced_syncs_push_out_at_most_one_other_each_and_keep_the_rules(spacing: int) -> None:
    store = SyncStore()
    before: set[Sync] = set()
    for number in range(1_000):
        store.add(Sync(number * spacing, number))

        kept = store.kept
        assert len(before - set(kept)) <= 1
        before = set(kept)
        assert kept[0] == Sync(number * spacing, number)  # A
        assert kept[-1] == Sync(0, 0)  # D
        for i, (newer, older) in enumerate(pairwise(store._slots)):
            if newer is not older:
                assert older.upstream + 2 ** max(i - 2, 0) <= newer.upstream <= older.upstream + 2**i  # B and C
