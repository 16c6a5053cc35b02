"""What only the target has, found without holding a chain or a log in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import TypeVar
from weakref import WeakSet

from hypothesis import given
from hypothesis import strategies as st

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.reconcile.difference import claims_of, read_through, seen_in
from mirrorless.record import Record
from mirrorless.run import Run
from tests.support.chains import run

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


def test_copies_of_a_job_have_markers_in_a_flow_without_transactions() -> None:
    """Every chunk of a backfill would be a hole to read otherwise."""
    by_job = [run(0, 10, (0, 0, 10)), run(10, 20, (10, 11, 10))]
    assert claims_of(by_job).holes == ()


def test_what_was_brought_back_before_is_no_hole_any_more() -> None:
    apart = [run(0, 10, (0, 0, 10)), run(10, 20, (10, 30, 10)), run(20, 30, (20, 60, 10))]
    assert claims_of(apart, since=35).holes == (OffsetRange(40, 60),)
    assert claims_of(apart, since=15).holes == (OffsetRange(15, 30), OffsetRange(40, 60))
