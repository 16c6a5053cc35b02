"""The search for a refused record, without a target: how many records the next batches have, and which go first."""

from __future__ import annotations

import pytest

from mirrorless.protocol.refusal import RefusalSearch


def test_a_search_among_ten_thousand_records_takes_four_steps() -> None:
    search, sizes = RefusalSearch.among(10_000), list[int]()

    while not search.refused(0, 0):
        sizes.append(search.batch)

    assert sizes == [40, 3, 1]


def test_what_the_target_took_before_the_refused_batch_goes_alone_and_in_batches_of_the_same_size() -> None:
    search = RefusalSearch.among(1_600)

    assert not search.refused(300, 0)
    assert (search.certain, search.batch) == (300, 100)
    assert search.taken(200, 1_400) == 0
    assert (search.certain, search.batch) == (100, 100)
    assert search.taken(100, 1_300) == 0
    assert (search.certain, search.batch) == (0, 7)


def test_a_batch_whose_records_are_taken_in_smaller_ones_was_too_large_as_a_whole() -> None:
    search = RefusalSearch.among(1_600)
    search.refused(0, 100_000)

    assert search.taken(60, 1_540) == 0
    assert search.taken(52, 1_488) == 100_000
    assert search.batch == 93
    assert search.taken(1_488, 0) == 0


def test_the_refused_record_itself_ends_the_search() -> None:
    search = RefusalSearch.among(16)

    assert search.refused(5, 10)
    assert search.certain == 0
    assert search.taken(5, 0) == 0


@pytest.mark.parametrize("first", [0, 99])
def test_a_batch_is_too_large_as_a_whole_once_the_last_of_its_records_is_taken(first: int) -> None:
    search = RefusalSearch.among(1_600)
    search.refused(0, 100_000)
    search.taken(first, 1_600 - first)

    assert search.taken(100 - first, 1_500) == 100_000
