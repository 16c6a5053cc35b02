"""Spans say which upstream offset stands where downstream, and survive being stored."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrorless.chain.run import Run, Span, pack_spans, spans_of, unpack_spans
from tests.support.chains import run

steps = st.integers(min_value=1, max_value=5) | st.integers(min_value=1, max_value=2**40)
pairs = st.lists(st.tuples(steps, steps), max_size=40).map(
    lambda grown: [
        (sum(up for up, _ in grown[: i + 1]) - 1, sum(down for _, down in grown[: i + 1]) - 1)
        for i in range(len(grown))
    ]
)


def pairs_of(spans: tuple[Span, ...]) -> list[tuple[int, int]]:
    return [(span.upstream + i, span.downstream + i) for span in spans for i in range(span.length)]


@given(pairs)
def test_spans_hold_every_pair_of_offsets_and_no_other(pairs: list[tuple[int, int]]) -> None:
    spans = spans_of([up for up, _ in pairs], [down for _, down in pairs])

    assert pairs_of(spans) == pairs


@given(pairs)
def test_no_span_could_be_joined_to_the_next(pairs: list[tuple[int, int]]) -> None:
    """The map pays for each span: a batch without gaps must be one."""
    spans = spans_of([up for up, _ in pairs], [down for _, down in pairs])

    assert not [
        (first, second)
        for first, second in pairwise(spans)
        if (first.upstream + first.length, first.downstream + first.length) == (second.upstream, second.downstream)
    ]


@given(pairs)
@example([])
@example([(2**62, 2**62)])
def test_packed_spans_are_the_same_spans_when_unpacked(pairs: list[tuple[int, int]]) -> None:
    spans = spans_of([up for up, _ in pairs], [down for _, down in pairs])

    assert unpack_spans(pack_spans(spans)) == spans
    begun = spans[0].upstream if spans else 0
    assert unpack_spans(pack_spans(spans, begun), begun) == spans


def test_a_batch_without_gaps_is_stored_in_a_few_bytes() -> None:
    assert len(pack_spans(spans_of(range(10_000), range(5_000_000, 5_010_000)))) <= 7


def test_a_span_for_each_of_4000_records_is_stored_in_a_tenth_of_a_kilobyte() -> None:
    behind_markers = range(1_000, 9_000, 2)  # a transaction for each record, as a source of one-record commits has it

    packed = pack_spans(spans_of(behind_markers, range(5_000_000_000, 5_000_004_000)), 1_000)

    assert len(unpack_spans(packed, 1_000)) == 4_000
    assert len(zlib.compress(packed)) < 100


@pytest.mark.parametrize(
    ("link", "gaps", "last"),
    [
        (run(100, 112, (103, 517, 3), (108, 520, 2)), [(100, 103), (106, 108), (110, 112)], 521),
        (run(100, 112), [(100, 112)], None),
    ],
)
def test_what_lies_in_no_span_is_a_gap_and_the_last_record_is_that_of_the_last_span(
    link: Run, gaps: list[tuple[int, int]], last: int | None
) -> None:
    assert (list(link.gaps()), link.last_downstream) == (gaps, last)
