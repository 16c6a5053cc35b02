"""The audit of the offset map: each wrong place counts once, and a true map counts nothing."""

from __future__ import annotations

from lab.audit.translations import LoadedChains, count_mistranslated, expectations
from mirrorless.verify.comparison import RecordAt, compare
from tests.support.chains import LANE, MemoryChains, reset, run

END = 13
PLACES = {2: 10, 3: 11, 4: 12, 7: 14, 8: 15, 9: 16}
"""Upstream offsets and where they stand; 0, 1, 5, 6 and everything from 10 on is no record."""


def chain(*links: object) -> MemoryChains:
    chains = MemoryChains()
    chains.prepare(links)  # type: ignore[arg-type]  # tests give runs
    return chains


def count(chains: MemoryChains, places: dict[int, int] = PLACES, upstream: list[int] | None = None) -> int:
    offsets = sorted(places) if upstream is None else upstream
    return count_mistranslated(chains, LANE, upstream=offsets, places=places, end=END, seed=1)


TRUE = (run(0, 5, (2, 10, 3)), run(5, 10, (7, 14, 3)))


def test_a_true_map_has_no_mistranslated_offset_in_records_gaps_and_at_the_end() -> None:
    assert count(chain(*TRUE)) == 0


def test_every_offset_up_to_the_stable_end_is_checked() -> None:
    """An offset that is not checked could be wrong for ever."""
    checked = [each.upstream for each in expectations(sorted(PLACES), PLACES, end=END)]

    assert checked == list(range(END + 1))


def test_one_record_at_a_wrong_place_counts_once() -> None:
    wrong = run(0, 5, (2, 10, 2), (4, 13, 1))

    assert count(chain(wrong, TRUE[1])) == 1


def test_a_run_that_is_shifted_by_one_counts_each_record_and_each_gap_before_it_and_the_end() -> None:
    shifted = run(5, 10, (7, 15, 3))

    # Records 7, 8, 9; gaps 5, 6; the end 10, and 11, 12, 13 beyond it.
    assert count(chain(TRUE[0], shifted)) == 9


def test_a_run_that_was_never_confirmed_leaves_its_records_mistranslated() -> None:
    """What is not confirmed is not part of the map, though its records may be visible."""
    assert count(chain(TRUE[0], run(5, 10, (7, 14, 3), state="prepared"))) > 0


def test_a_lane_without_a_map_has_every_offset_mistranslated() -> None:
    assert count(MemoryChains()) == END + 1


def test_an_empty_lane_has_nothing_to_translate() -> None:
    assert count(MemoryChains(), {}) == 0


def test_a_lost_record_is_not_counted_as_mistranslated_as_well() -> None:
    """One fault is one finding: where a lost record should stand is unknown."""
    without = {upstream: downstream for upstream, downstream in PLACES.items() if upstream != 8}

    assert count(chain(*TRUE), without, sorted(PLACES)) == 0


def test_a_loaded_chain_answers_as_its_store_does() -> None:
    chains = chain(*TRUE)
    loaded = LoadedChains(chains, LANE)

    assert loaded.heads([LANE]) == chains.heads([LANE])
    for offset in range(-1, END):
        assert loaded.at_or_before(LANE, 0, offset) == chains.at_or_before(LANE, 0, offset)
        assert loaded.after(LANE, 0, offset, limit=1) == chains.after(LANE, 0, offset, limit=1)


def test_the_pairs_of_a_comparison_are_the_places_that_are_translated() -> None:
    """What `audit` hands from one to the other."""
    source = [RecordAt(upstream, b"%d" % upstream) for upstream in PLACES]
    target = [RecordAt(downstream, b"%d" % upstream) for upstream, downstream in PLACES.items()]

    pairs = compare(source, target).pairs

    assert {up.offset: down.offset for up, down in pairs} == PLACES


def test_after_a_reset_the_offsets_of_the_newest_generation_are_checked_and_no_others() -> None:
    """Its first run covers what lies between the reset and its first record."""
    chains = chain(run(0, 5, (2, 10, 3)))
    chains.reset(reset(5, 6))
    chains.prepare([run(6, 10, (7, 0, 3), generation=1)])
    places = {7: 0, 8: 1, 9: 2}

    assert [each.upstream for each in expectations([7, 8, 9], places, end=END, begin=6)] == [*range(6, END + 1)]
    for wrong, found in ((places, 0), ({7: 0, 8: 1, 9: 3}, 5)):
        assert count_mistranslated(chains, LANE, upstream=[7, 8, 9], places=wrong, begin=6, end=END, seed=1) == found
