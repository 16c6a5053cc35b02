"""The report of a verification: its words, its totals, and its page."""

from __future__ import annotations

import msgspec
import pytest

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.records.record import Record
from mirrorless.reports.page import render
from mirrorless.reports.report import LanePlot
from mirrorless.verify.explanation import differs
from mirrorless.verify.findings import SEGMENTS, Finding, LaneVerdict
from mirrorless.verify.summary import is_clean, report_of, totals_of

ORIGINAL = Record(offset=1, timestamp=5, headers=[("a", b"1"), ("b", None)], key=b"key", value=b"value")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"value": b"vAlue"}, "value differs from byte 1 on, of 5 bytes"),
        ({"value": b"value and more"}, "value differs from byte 5 on, 5 bytes have become 14"),
        ({"value": None}, "value of 5 bytes has become null"),
        ({"key": b""}, "key of 3 bytes has become empty"),
        ({"headers": [("a", b"1"), ("b", b"")]}, "header 2 of 2: value null has become empty"),
        ({"headers": [("b", None), ("a", b"1")]}, "headers stand in another order"),
        ({"headers": [("a", b"1")]}, "2 headers have become 1, or have other names"),
        ({"timestamp": 6, "key": b"kez"}, "key differs from byte 2 on, of 3 bytes; timestamp 5 has become 6"),
        ({}, ""),
    ],
)
def test_a_difference_is_described_in_words_and_without_the_content(parts: dict[str, object], words: str) -> None:
    assert differs(ORIGINAL, msgspec.structs.replace(ORIGINAL, **parts)) == words


def missing(first: int, following: int) -> Finding:
    place, records = OffsetRange(first, following), following - first
    return Finding(kind="missing", generation=0, upstream=place, downstream=None, records=records, what="gone")


def a_verdict(partition: int = 0) -> LaneVerdict:
    verdict = LaneVerdict(lane=f"a->b orders-{partition}", topic="orders", partition=partition, position=10)
    verdict.counts.records, verdict.counts.proved = 10, 10
    verdict.mark(0, 10, "proved")
    return verdict


def test_findings_in_a_row_are_one() -> None:
    verdict = a_verdict()
    for first in (3, 4, 5, 8):
        verdict.find(missing(first, first + 1))

    assert verdict.findings == [missing(3, 6), missing(8, 9)]
    assert verdict.counts.missing == 4


def test_a_lane_of_many_parts_is_drawn_with_some_of_them_and_the_rest_as_one() -> None:
    verdict = LaneVerdict(lane="a->b orders-0", topic="orders", partition=0)
    for number in range(SEGMENTS * 2):
        verdict.mark(number, number + 1, "proved" if number % 2 else "expired")

    assert len(verdict.segments) == SEGMENTS
    assert (verdict.segments[-1].kind, verdict.segments[-1].next) == ("more", SEGMENTS * 2)


def test_a_clean_report_says_what_is_proved_and_what_cannot_be() -> None:
    verdict = a_verdict()
    verdict.counts.records, verdict.counts.expired = 12, 2

    report = report_of([verdict, a_verdict(1)], flow="a->b", seconds=2.0, made_at=1)

    assert is_clean([verdict])
    assert report.tone == "good"
    assert report.verdict == (
        "Nothing is wrong: 20 of 22 records are proved; 2 cannot be, and none of them is known to be wrong."
    )
    assert [section.heading for section in report.sections] == ["Not proved", "Lanes"]
    assert "log begins above them" in render(report)


def test_a_report_with_findings_lists_them_with_their_places() -> None:
    verdict = a_verdict()
    verdict.find(missing(3, 6))
    verdict.left_out = 7

    report = report_of([verdict], flow="a->b", seconds=2.0, made_at=1)

    assert not is_clean([verdict])
    assert (report.tone, report.verdict) == ("bad", "Of 10 records 3 missing.")
    table = report.sections[0].tables[0]
    assert table.rows == (("missing", "orders-0", "3 to 5", "none", 3, "gone"),)
    assert table.note.startswith("7 more findings")


def test_a_lane_that_could_not_be_read_is_not_clean_and_nothing_proved_is_not_called_good() -> None:
    failed = LaneVerdict(lane="a->b orders-1", topic="orders", partition=1, state="failed", error="no answer")

    assert not is_clean([failed])
    report = report_of([a_verdict(), failed], flow="a->b", seconds=1, made_at=1)
    assert report.verdict.startswith("1 of 2 lanes could not be verified. Nothing else is wrong: ")
    assert report.sections[-1].tables[0].rows[0][:2] == ("orders-1", "no answer")
    empty = LaneVerdict(lane="a->b orders-1", topic="orders", partition=1)
    report = report_of([empty], flow="a->b", seconds=0.0, made_at=1)
    assert (report.tone, report.verdict) == ("", "There was nothing to verify.")
    assert totals_of([empty], seconds=0.0)["records_per_second"] == 0


def test_the_legend_counts_what_the_figures_count_and_failed_lanes_are_drawn_first() -> None:
    """Segments are offsets of the newest generation: their sums are no records."""
    verdicts = [a_verdict(partition) for partition in range(130)]
    verdicts[7].counts.expired = 3
    failed = LaneVerdict(lane="a->b orders-130", topic="orders", partition=130, state="failed", error="no answer")

    report = report_of([*verdicts, failed], flow="a->b", seconds=1.0, made_at=0)

    (plot,) = report.sections[-1].plots
    assert isinstance(plot, LanePlot)
    figures = {figure.name: figure.value for figure in report.figures}
    assert (plot.counts["proved"], plot.counts["expired"]) == (figures["proved"], 3)
    assert plot.first == ("orders-130",)
    assert plot.lanes[0] == ("orders-130", ())
    assert "Shown are 100 of 131 lanes; counted are all." in plot.note
