"""Two readings of a partition: one planted fault is found as exactly that fault, and counted once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from mirrorless.verify.comparison import RecordAt, compare, content

Counts = tuple[int, int, int, int]
CLEAN: Counts = (0, 0, 0, 0)

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


@given(st.one_of(unique, repeating), st.data())
def test_a_record_that_is_missing_is_lost_even_among_its_equals(values: list[bytes], data: st.DataObject) -> None:
    """Which of several equal records was lost is undefined; that one was lost, and nothing moved, is not."""
    at = data.draw(st.integers(0, len(values) - 1))

    assert found(values, values[:at] + values[at + 1 :]) == (1, 0, 0, 0)


@given(unique, st.data())
def test_a_record_that_comes_twice_is_duplicated_wherever_the_second_stands(
    values: list[bytes], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(values) - 1))
    again = data.draw(st.integers(at + 1, len(values)))

    assert found(values, [*values[:again], values[at], *values[again:]]) == (0, 1, 0, 0)


@given(unique, st.data())
def test_a_record_that_stands_elsewhere_is_reordered(values: list[bytes], data: st.DataObject) -> None:
    rest = list(values)
    moved = rest.pop(data.draw(st.integers(0, len(values) - 1)))
    rest.insert(data.draw(st.integers(0, len(rest))), moved)
    assume(rest != values)

    assert found(values, rest) == (0, 0, 1, 0)


@given(unique, st.data())
def test_a_record_with_a_changed_byte_is_different_and_not_lost(values: list[bytes], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(values) - 1))

    assert found(values, [*values[:at], b"changed", *values[at + 1 :]]) == (0, 0, 0, 1)


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


@given(repeating, st.data())
def test_a_record_that_comes_twice_is_duplicated_even_among_its_equals(
    values: list[bytes], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(values) - 1))

    assert found(values, [*values[: at + 1], values[at], *values[at + 1 :]]) == (0, 1, 0, 0)
