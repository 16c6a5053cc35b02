"""The port of MM2's offset translation passes MM2's own tests, so comparisons with it are fair."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.mm2_store import SLOTS, Sync, SyncStore, SyncWriter

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


def upstream_of(syncs: Iterable[Sync]) -> list[int]:
    return sorted(sync.upstream for sync in syncs)


# The writer


def test_a_sync_is_due_first_after_a_gap_after_a_rewind_and_when_the_last_one_is_too_far_behind() -> None:
    writer = SyncWriter(lag_max=50)

    assert [(u, d, writer.is_due(u, d)) for u, d, _ in LAG_50] == list(LAG_50)


def test_with_a_lag_of_zero_every_record_is_due() -> None:
    writer = SyncWriter(lag_max=0)

    assert all(writer.is_due(offset, offset + 7) for offset in range(100))


@pytest.mark.parametrize(("lag_max", "count"), [(0, 1_000), (10, 91), (100, 10), (1_000, 1)])
def test_without_gaps_a_sync_is_due_after_every_lag_and_one(lag_max: int, count: int) -> None:
    writer = SyncWriter(lag_max=lag_max)

    assert sum(writer.is_due(offset, offset) for offset in range(1_000)) == count


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


def test_nothing_is_translated_before_the_syncs_of_the_past_are_read() -> None:
    store = SyncStore(started=False)
    store.add(Sync(100, 200))
    assert [store.translate(offset) for offset in (0, 100, 200)] == [None, None, None]

    store.started = True
    assert [store.translate(offset) for offset in (0, 100, 200)] == [-1, 200, 201]


def test_nothing_is_translated_without_a_sync() -> None:
    assert SyncStore().translate(5) is None


def past_and_live(*, only_the_last_of_the_past: bool) -> tuple[list[int], list[int]]:
    """Syncs at every tenth offset, to 1,000 before the start and to 10,000 after it: what is kept at both times."""
    store = SyncStore(started=False, only_the_last_of_the_past=only_the_last_of_the_past)
    for offset in range(0, 1_001, 10):
        store.add(Sync(offset, offset))
    store.started = True
    past = upstream_of(store.kept)
    for offset in range(1_010, 10_001, 10):
        store.add(Sync(offset, offset))
    return past, upstream_of(store.kept)


def test_of_a_past_that_must_not_be_used_the_last_sync_remains() -> None:
    past, live = past_and_live(only_the_last_of_the_past=True)

    assert past == [1_000]
    assert live == [1_000, 4_840, 6_760, 8_680, 9_160, 9_640, 9_880, 9_940, 9_970, 9_990, 10_000]


def test_of_a_past_that_may_be_used_the_earliest_sync_remains_too() -> None:
    past, live = past_and_live(only_the_last_of_the_past=False)

    assert {0, 480, 720, 990, 1_000} <= set(past)
    assert live == [0, 3_840, 7_680, 8_640, 9_120, 9_600, 9_840, 9_900, 9_960, 9_990, 10_000]


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
        _assert_b_and_c(store)


def _assert_b_and_c(store: SyncStore) -> None:
    slots = store._slots
    for i in range(SLOTS):
        for j in range(i + 1, min(i + 2, SLOTS)):
            if slots[i] is not slots[j]:
                assert slots[i].upstream <= slots[j].upstream + 2**j - 2**i
                assert slots[i].upstream >= slots[j].upstream + 2 ** max(i - 2, 0)
