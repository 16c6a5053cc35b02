"""The causes of gaps, and no explanation for offsets that were not read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.chain.losses import LOSSES, ExplainedGap, GapCause
from mirrorless.lanes.gaps import (
    EVENT_BYTES,
    UNREAD,
    Cleanup,
    GapRange,
    Look,
    cleanup_of,
    clipped,
    explain,
    gaps_of,
    to_confirm,
)
from mirrorless.records.record import Record, event_bytes
from tests.support.chains import run

EXPIRES = Cleanup(compacts=False, expires=True)
KEEPS = Cleanup(compacts=False, expires=False)
COMPACTS = Cleanup(compacts=True, expires=False)
COMPACTS_AND_EXPIRES = Cleanup(compacts=True, expires=True)

NOTHING = Look(until=20, visible={})
RECORD = Look(until=20, visible={10: 100})
LARGE = Look(until=20, visible={10: EVENT_BYTES})


def causes(
    gaps: list[GapRange],
    *,
    start: int = 0,
    cleanup: Cleanup = KEEPS,
    uncommitted: Look = NOTHING,
    committed: Look = UNREAD,
) -> tuple[list[tuple[int, int, GapCause]], int | None]:
    pieces, until = explain(gaps, start=start, cleanup=cleanup, uncommitted=uncommitted, committed=committed)
    return [(piece.first, piece.next, piece.cause) for piece in pieces], until


@pytest.mark.parametrize(
    ("start", "cleanup", "uncommitted", "committed", "cause"),
    [
        (11, EXPIRES, UNREAD, UNREAD, "retention"),
        (11, COMPACTS_AND_EXPIRES, UNREAD, UNREAD, "retention"),
        (11, KEEPS, UNREAD, UNREAD, "truncation"),
        (11, COMPACTS, UNREAD, UNREAD, "truncation"),
        (10, EXPIRES, NOTHING, UNREAD, "transaction_marker"),
        (10, KEEPS, NOTHING, UNREAD, "transaction_marker"),
        (10, COMPACTS, NOTHING, UNREAD, "compaction"),
        (10, COMPACTS_AND_EXPIRES, NOTHING, UNREAD, "compaction"),
        (10, EXPIRES, RECORD, NOTHING, "aborted"),
        (10, COMPACTS, RECORD, NOTHING, "aborted"),
        (10, EXPIRES, RECORD, RECORD, "unexplained"),
        (10, COMPACTS, RECORD, RECORD, "unexplained"),
        (10, EXPIRES, LARGE, LARGE, "oversize"),
    ],
)
def test_each_gap_has_its_cause(
    start: int, cleanup: Cleanup, uncommitted: Look, committed: Look, cause: GapCause
) -> None:
    found = causes([(10, 11)], start=start, cleanup=cleanup, uncommitted=uncommitted, committed=committed)

    assert found == ([(10, 11, cause)], None)


def test_a_gap_is_split_where_its_causes_change() -> None:
    uncommitted = Look(until=20, visible={12: 1, 13: 1, 14: EVENT_BYTES})
    committed = Look(until=15, visible={13: 1, 14: EVENT_BYTES})

    found = causes([(5, 16)], start=8, cleanup=EXPIRES, uncommitted=uncommitted, committed=committed)

    assert found == (
        [
            (5, 8, "retention"),
            (8, 12, "transaction_marker"),
            (12, 13, "aborted"),
            (13, 14, "unexplained"),
            (14, 15, "oversize"),
            (15, 16, "transaction_marker"),
        ],
        None,
    )


def test_pieces_of_one_cause_are_one_piece() -> None:
    records = dict.fromkeys(range(3, 9), 10)

    found = causes([(3, 9)], uncommitted=Look(until=9, visible=records), committed=Look(until=9, visible=records))

    assert found == ([(3, 9, "unexplained")], None)


def test_what_was_not_read_waits() -> None:
    assert causes([(3, 5), (8, 12), (15, 16)], uncommitted=Look(until=10, visible={})) == (
        [(3, 5, "transaction_marker"), (8, 10, "transaction_marker")],
        10,
    )
    assert causes([(3, 5)], uncommitted=UNREAD) == ([], 3)
    assert causes([(3, 5)], start=4, cleanup=EXPIRES, uncommitted=UNREAD) == ([(3, 4, "retention")], 4)


def test_a_record_waits_until_a_read_committed_reader_could_have_seen_it() -> None:
    """It may be aborted, or of a transaction that is still open: read_uncommitted does not show which."""
    uncommitted = Look(until=12, visible={9: 1, 10: 1})

    assert causes([(8, 12)], uncommitted=uncommitted, committed=Look(until=10, visible={})) == (
        [(8, 9, "transaction_marker"), (9, 10, "aborted")],
        10,
    )
    assert causes([(8, 12)], uncommitted=uncommitted, committed=UNREAD) == ([(8, 9, "transaction_marker")], 9)


def test_only_ranges_with_a_record_are_read_twice() -> None:
    assert to_confirm([(0, 5), (7, 20), (30, 31)], Look(until=40, visible={9: 1, 12: 1, 30: 1})) == [(9, 13), (30, 31)]


@given(
    ends=st.lists(st.integers(1, 60), min_size=2, max_size=12, unique=True).map(sorted),
    start=st.integers(0, 60),
    uncommitted=st.dictionaries(st.integers(0, 60), st.integers(1, 5)),
    read=st.integers(-1, 61),
    confirmed=st.integers(-1, 61),
)
def test_pieces_lie_end_to_end_over_all_that_is_explained(
    ends: list[int], start: int, uncommitted: dict[int, int], read: int, confirmed: int
) -> None:
    """Every offset of a gap is in exactly one piece, or at or above the place from which on nothing was read."""
    gaps = list(zip(ends[::2], ends[1::2], strict=False))
    visible = {offset: size for offset, size in sorted(uncommitted.items()) if offset < read}

    pieces, until = explain(
        gaps,
        start=start,
        cleanup=EXPIRES,
        uncommitted=Look(until=read, visible=visible),
        committed=Look(until=confirmed, visible={offset: size for offset, size in visible.items() if offset % 2}),
    )

    offsets = [offset for first, following in gaps for offset in range(first, following)]
    covered = [offset for piece in pieces for offset in range(piece.first, piece.next)]
    assert covered == [offset for offset in offsets if until is None or offset < until]
    by_offset: dict[int, ExplainedGap] = {
        offset: piece for piece in pieces for offset in range(piece.first, piece.next)
    }
    for offset, piece in by_offset.items():
        assert (piece.cause == "retention") == (offset < start)
        if offset >= start and offset in visible:
            assert piece.cause == ("unexplained" if offset % 2 else "aborted")


# Which ranges want an explanation


def test_what_lies_before_a_lanes_very_first_record_was_never_the_lanes() -> None:
    assert gaps_of(run(0, 110, (100, 5, 3), (107, 8, 3)), 0) == [(103, 107)]
    assert gaps_of(run(0, 110, (100, 5, 3), (107, 8, 3), generation=1), 0) == [(0, 100), (103, 107)]
    assert gaps_of(run(50, 110, (100, 5, 10)), 0) == [(50, 100)]


def test_what_the_operator_left_out_needs_no_other_explanation() -> None:
    assert gaps_of(run(10, 20, (10, 5, 2), (18, 7, 2), quarantined=(12, 15)), 0) == [(13, 15), (16, 18)]
    assert gaps_of(run(10, 13, (10, 5, 1), quarantined=(11, 12)), 0) == []
    assert gaps_of(run(0, 6, quarantined=(5,)), 0) == []
    with_returned = replace(run(10, 20, (10, 5, 2), (18, 7, 2), quarantined=(15,)), returned=((12, 14), (16, 17)))
    assert gaps_of(with_returned, 0) == [(14, 15), (17, 18)]
    by_rule = replace(run(8, 20, (10, 5, 2), (18, 7, 2)), rule=b"12345678", filtered=((8, 9), (13, 14), (15, 18)))
    assert gaps_of(by_rule, 0) == [(9, 10), (12, 13), (14, 15)]


def test_what_was_explained_already_is_left_out() -> None:
    assert gaps_of(run(10, 20, (19, 5, 1)), 15) == [(15, 19)]
    assert clipped([(1, 3), (5, 9), (12, 14)], 7) == [(7, 9), (12, 14)]


# The source's rules


@pytest.mark.parametrize(
    ("configs", "cleanup"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}, EXPIRES),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "1000"}, EXPIRES),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, KEEPS),
        ({"cleanup.policy": "compact", "retention.ms": "604800000", "retention.bytes": "-1"}, COMPACTS),
        ({"cleanup.policy": "compact, delete", "retention.ms": "1", "retention.bytes": "-1"}, COMPACTS_AND_EXPIRES),
        ({"cleanup.policy": "", "retention.ms": "1", "retention.bytes": "-1"}, KEEPS),
    ],
)
def test_a_topics_configs_say_what_removes_its_records(configs: dict[str, str | None], cleanup: Cleanup) -> None:
    assert cleanup_of(configs) == cleanup


def test_a_records_size_is_that_of_its_json() -> None:
    """Base64 for key and value; the bytes of a header are written as signed numbers."""
    record = Record(offset=1, timestamp=1, headers=[], key=None, value=b"x" * 300)

    assert event_bytes(record) == 400
    assert event_bytes(Record(offset=1, timestamp=1, headers=[("h", b"\xff\x00\x7f")], key=None, value=None)) == len(
        '{"h":[-1,0,127]},'
    )
    assert event_bytes(Record(offset=1, timestamp=1, headers=[], key=b"k", value=b"x" * 4_800_000)) > EVENT_BYTES


def test_only_what_is_missing_on_the_target_is_a_loss() -> None:
    assert {"retention", "truncation", "oversize", "unexplained"} == LOSSES


def test_a_run_without_gaps_and_what_a_job_has_examined_need_no_other_explanation() -> None:
    whole, with_gap = run(10, 20, (10, 5, 10)), run(10, 20, (12, 0, 3))

    assert gaps_of(whole, 0) == gaps_of(replace(whole, generation=3), 15) == []
    assert gaps_of(with_gap, 0) != []
    assert gaps_of(replace(with_gap, examined=True), 0) == []
