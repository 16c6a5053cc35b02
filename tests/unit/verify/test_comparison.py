"""Two readings of a partition: one planted fault is found as exactly that fault, and counted once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.verify.comparison import RecordAt, compare, content

Counts = tuple[int, int, int, int]
CLEAN: Counts = (0, 0, 0, 0)
Fault = Callable[[list[bytes], int, int], list[bytes]]

contents = st.integers(0, 200).map(lambda number: b"%d" % number)
unique = st.lists(contents, min_size=2, max_size=30, unique=True)
repeating = st.lists(st.integers(0, 3).map(lambda number: b"%d" % number), min_size=2, max_size=30)


def seen(values: Sequence[bytes], start: int = 0) -> list[RecordAt]:
    return [RecordAt(start + i, value) for i, value in enumerate(values)]


def found(source: Sequence[bytes], target: Sequence[bytes]) -> Counts:
    """Lost, duplicated, reordered, different."""
    result = compare(seen(source), seen(target, 100))
    return result.lost, result.duplicated, result.reordered, result.different


@given(repeating)
def test_a_true_copy_has_no_finding_even_where_contents_repeat(values: list[bytes]) -> None:
    assert found(values, values) == CLEAN


@given(repeating, repeating)
def test_whatever_is_not_the_same_has_a_finding(source: list[bytes], target: list[bytes]) -> None:
    """The one mistake that an audit must not make."""
    assert (found(source, target) == CLEAN) == (source == target)


def gone(values: list[bytes], at: int, _: int) -> list[bytes]:
    return values[:at] + values[at + 1 :]


def twice(values: list[bytes], at: int, to: int) -> list[bytes]:
    behind = max(at, to) + 1
    return [*values[:behind], values[min(at, to)], *values[behind:]]


def moved(values: list[bytes], at: int, to: int) -> list[bytes]:
    rest, to = gone(values, at, to), to if to != at else (at + 1) % len(values)
    return [*rest[:to], values[at], *rest[to:]]


def changed(values: list[bytes], at: int, _: int) -> list[bytes]:
    return [*values[:at], b"changed", *values[at + 1 :]]


@pytest.mark.parametrize(
    ("fault", "contents", "counts"),
    [
        # Which of several equal records was lost is undefined; that one was lost, and nothing moved, is not.
        pytest.param(gone, st.one_of(unique, repeating), (1, 0, 0, 0), id="lost, even among its equals"),
        pytest.param(twice, unique, (0, 1, 0, 0), id="duplicated, wherever the second stands"),
        pytest.param(
            lambda values, at, _: twice(values, at, at), repeating, (0, 1, 0, 0), id="duplicated, even among its equals"
        ),
        pytest.param(moved, unique, (0, 0, 1, 0), id="reordered, wherever it stands"),
        pytest.param(changed, unique, (0, 0, 0, 1), id="different and not lost"),
    ],
)
@given(data=st.data())
def test_a_record_with_one_fault_is(
    fault: Fault, contents: st.SearchStrategy[list[bytes]], counts: Counts, data: st.DataObject
) -> None:
    values = data.draw(contents)
    places = st.integers(0, len(values) - 1)

    assert found(values, fault(values, data.draw(places), data.draw(places))) == counts


def test_null_is_not_empty_and_every_part_of_a_record_counts() -> None:
    one = content(1, b"k", b"v", [("a", b"1"), ("b", None)])
    others = [
        content(2, b"k", b"v", [("a", b"1"), ("b", None)]),
        content(1, b"", b"v", [("a", b"1"), ("b", None)]),
        content(1, None, b"v", [("a", b"1"), ("b", None)]),
        content(1, b"k", b"", [("a", b"1"), ("b", None)]),
        content(1, b"k", None, [("a", b"1"), ("b", None)]),
        content(1, b"kv", b"", [("a", b"1"), ("b", None)]),
        content(1, b"k", b"v", [("a", b"1"), ("b", b"")]),
        content(1, b"k", b"v", [("b", None), ("a", b"1")]),
        content(1, b"k", b"v", [("a", b"1"), ("a", b"1"), ("b", None)]),
        content(1, b"k", b"v", []),
        content(1, b"k", b"v", None),
    ]

    assert one not in others
    assert len(set(others)) == len(others) - 1  # no headers and an empty list of them are the same
