"""Ranges of a log, read side by side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.adapters.kafka.log_ranges import TO_THE_END, Range, RangePart, joined, read_ranges
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import TopicPartition
from mirrorless.records.record_batch import BatchUnreadable
from tests.support.memory_log import MemoryLog

ONE, OTHER = ("orders", 0), ("orders", 1)


def looks(number: int) -> object:
    """A deadline that is over after so many looks at it."""
    left = [1.0] * number
    return lambda: left.pop() if left else 0.0


def read(
    log: MemoryLog, place: TopicPartition, *ranges: Range, near: int = 0, most: int = 40
) -> tuple[list[int], RangePart]:
    """The offsets that were seen, and the last that was said of the partition."""
    parts = list(read_ranges(log, {place: ranges}, looks(most), near=near))  # type: ignore[arg-type]  # a deadline
    assert log.at == {}, "what was read is left"
    return [each.offset for part in parts for each in part.records], parts[-1]


@given(
    records=st.sets(st.integers(0, 40)),
    bounds=st.sets(st.integers(0, 45), min_size=2, max_size=8),
    start=st.integers(0, 20),
    near=st.integers(0, 10),
    few=st.integers(1, 5),
)
def test_what_a_log_has_of_ranges_is_read_once_and_in_order(
    records: set[int], bounds: set[int], start: int, near: int, few: int
) -> None:
    log, growing = MemoryLog(few=few), sorted(bounds)
    ranges = list(zip(growing[::2], growing[1::2], strict=False))
    end = log.partition(ONE, *sorted(each for each in records if each >= start), start=start, end=42).end

    seen, last = read(log, ONE, *ranges, near=near, most=400)

    within = {offset for first, following in ranges for offset in range(max(first, start), min(following, end))}
    assert seen == sorted(records & within)
    assert (last.over, last.failure) == (True, None)
    assert last.until == min(ranges[-1][1], max(end, start))
    assert bool(last.log_start) == (start > ranges[0][0])


def test_partitions_are_read_side_by_side_and_one_that_may_not_be_read_leaves_the_others() -> None:
    log = MemoryLog()
    log.partition(ONE, 0, 1, 2)
    log.partition(OTHER).refused = True

    parts = list(read_ranges(log, {ONE: [(0, 3)], OTHER: [(0, 3)]}, lambda: 1.0))

    assert [(each.place, each.over) for each in parts] == [(ONE, False), (OTHER, True), (ONE, True)]
    assert isinstance(parts[1].failure, Retriable)


def test_a_log_that_its_leader_says_to_end_there_is_read_to_its_end() -> None:
    log = MemoryLog()
    log.partition(ONE, 5)

    assert [(part.until, part.over) for part in read_ranges(log, {ONE: [(5, 8)]}, lambda: 1.0)] == [(6, True)]


def test_a_leader_that_shows_less_than_it_has_is_read_on() -> None:
    log = MemoryLog()
    log.partition(ONE, 5, 6, 7, end=9).shown = 5

    assert read(log, ONE, (5, 8))[0] == [5, 6, 7]


def test_a_leader_that_does_not_say_yet_where_its_log_ends_is_no_log_that_ends() -> None:
    log = MemoryLog()
    log.partition(ONE, end=5).silent = True

    _, last = read(log, ONE, (5, 8))

    assert (last.until, last.over) == (-1, False)


def test_a_log_that_ends_below_a_range_has_nothing_of_it() -> None:
    log = MemoryLog()
    log.partition(ONE, 0, 1)

    seen, last = read(log, ONE, (5, 8))

    assert (seen, last.until, last.over, last.failure) == ([], 2, True, None)


@pytest.mark.parametrize("ranges", [[(5, 8)], [(2, 3), (5, 8)]], ids=["within a range", "at the next range"])
def test_a_log_that_is_cut_and_grows_on_while_it_is_read_is_no_answer(ranges: Sequence[Range]) -> None:
    """Records of both logs would come together."""
    log, seen = MemoryLog(few=1), list[RangePart]()
    log.partition(ONE, *range(30))

    for part in read_ranges(log, {ONE: ranges}, lambda: 1.0):
        seen.append(part)
        own = log.partitions[ONE]
        own.start, own.end = (0, 30)
        log.at[ONE] = 31  # as the client says it, once the log is as long again

    assert isinstance(seen[-1].failure, Retriable)


def test_a_batch_that_nobody_can_read_ends_the_ranges_that_it_lies_in_alone() -> None:
    log = MemoryLog()
    log.partition(ONE, *range(10), end=30).damaged = BatchUnreadable("damaged", offset=10, following=20)

    for ranges, until, damaged in (([(0, 30)], 10, True), ([(3, 5), (12, 15)], 10, True), ([(4, 8)], 8, False)):
        seen, last = read(log, ONE, *ranges)
        assert (last.until, isinstance(last.failure, BatchUnreadable)) == (until, damaged)
        assert seen == list(range(ranges[0][0], min(ranges[0][1], 10)))


def test_whoever_has_enough_of_a_partition_reads_on_in_the_others() -> None:
    log, seen = MemoryLog(few=1), list[TopicPartition]()
    log.partition(ONE, *range(10))
    log.partition(OTHER, *range(3))

    for part in read_ranges(log, {ONE: [(0, TO_THE_END)], OTHER: [(0, TO_THE_END)]}, lambda: 1.0):
        seen.append(part.place)
        part.over = part.over or part.place == ONE

    assert seen == [ONE, OTHER, OTHER, OTHER]


@pytest.mark.parametrize("bound", ["records", "size"])
def test_a_bound_ends_the_reading_and_what_was_read_by_then_counts(bound: str) -> None:
    log = MemoryLog()
    log.partition(ONE, *range(10))

    parts = list(read_ranges(log, {ONE: [(0, 10)]}, lambda: 1.0, **{bound: 3}))

    assert (parts[-1].until, parts[-1].over) == (3, False)


def test_a_reader_that_has_seen_enough_leaves_the_log_as_it_was() -> None:
    log = MemoryLog()
    log.partition(ONE, *range(10))

    reading = read_ranges(log, {ONE: [(0, 10)]}, lambda: 1.0)
    next(reading)
    reading.close()  # type: ignore[attr-defined]  # a generator

    assert log.at == {}


def test_ranges_that_are_near_each_other_are_read_through() -> None:
    assert joined([(5, 6), (6, 7), (1_000, 1_001), (1_101, 1_102), (4_999, 5_000)], 500) == [
        (5, 7),
        (1_000, 1_102),
        (4_999, 5_000),
    ]
