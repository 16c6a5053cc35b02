"""The job around verifications: what fails leaves the others' results, a second run ends what is left, the report."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.json import decode, encode
from msgspec.structs import replace

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.progress import LaneProgress, by_lane
from mirrorless.jobs.request import JobRequest, VerifyOptions
from mirrorless.lanes.gaps import Cleanup
from mirrorless.records.record import Record
from mirrorless.reports.page import render
from mirrorless.reports.report import LanePlot
from mirrorless.verify.comparison import LeftOver, RecordAt
from mirrorless.verify.explanation import LeftOvers, differs
from mirrorless.verify.findings import SEGMENTS, SHOWN, Finding, LaneVerdict, RuleUse
from mirrorless.verify.parts import WHOLE, JoinedLane, LanePart, SurveyedLane, VerifyTask
from mirrorless.verify.run_ranges import ChainEnd
from mirrorless.verify.summary import is_clean, report_of, totals_of
from spark.jobs.driver import JobRun
from spark.jobs.lane_tasks import TaskAttempt
from spark.jobs.verify import lanes as verified_lanes
from spark.jobs.verify.lanes import PartWork, read_part, write_part
from spark.verify import _lanes_of_keys
from tests.support.verified_lane import SETTINGS, VerifiedLane, ruled

FIRST, LAST = TaskAttempt(number=0, last=False), TaskAttempt(number=3, last=True)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> dict[int, object]:
    """By partition: the lane that a task verifies, or the error that it meets."""
    found: dict[int, object] = {}

    def verification(task: VerifyTask, *_: object) -> object:
        lane = found[task.partition]
        if isinstance(lane, Exception):
            raise lane
        assert isinstance(lane, VerifiedLane)
        return lane.verification()

    monkeypatch.setattr(verified_lanes, "_verification", verification)
    return found


def work(folder: Path, partitions: int) -> list[PartWork]:
    task = VerifyTask(settings=SETTINGS, topic="orders", partition=0, run_id="verify-1", files=str(folder))
    return [PartWork(task=replace(task, partition=each), part=WHOLE) for each in range(partitions)]


def proved(every: list[PartWork], attempt: TaskAttempt) -> list[LanePart]:
    return [decode(verified_lanes.do_part(encode(one), attempt), type=LanePart) for one in every]


def test_a_part_whose_worker_died_behind_its_proof_is_not_read_again(tmp_path: Path, lanes: dict[int, object]) -> None:
    lanes[0] = Retriable("no answer")
    with pytest.raises(Retriable):
        proved(work(tmp_path, 1), FIRST)
    lanes[0] = VerifiedLane()
    before = proved(work(tmp_path, 1), FIRST)

    lanes[0] = AssertionError("it is read again")

    assert proved(work(tmp_path, 1), LAST) == before


def test_a_second_run_reads_what_the_first_has_not_proved(tmp_path: Path, lanes: dict[int, object]) -> None:
    lanes.update({0: VerifiedLane(), 1: Retriable("no answer")})
    assert [each.verdict.state for each in proved(work(tmp_path, 2), LAST)] == ["done", "failed"]

    lanes.update({0: AssertionError("it is read again"), 1: VerifiedLane()})
    again = [replace(each, known=each.task.partition == 0) for each in work(tmp_path, 2)]

    assert [each.verdict.state for each in proved(again, FIRST)] == ["done", "done"]


def test_a_part_that_fails_leaves_the_counts_of_the_others(tmp_path: Path, lanes: dict[int, object]) -> None:
    lanes[0] = Retriable("no answer")
    (one,) = work(tmp_path, 1)
    done = LanePart(name="0", verdict=LaneVerdict(lane="l", topic="orders", partition=0))
    done.verdict.counts.proved = 7
    whole = JoinedLane(one.task, SurveyedLane(chain=ChainEnd(generation=0, position=9, last=5)))

    for part in (done, *proved([one], LAST)):
        whole.add(part)
    verdict = whole.end({})

    assert (verdict.state, verdict.error, verdict.counts.proved) == (
        "failed",
        "1 of 2 parts: no answer (a retry may help).",
        7,
    )


def test_what_a_part_has_left_stays_in_the_folder_and_is_not_sent(tmp_path: Path) -> None:
    (one,) = work(tmp_path, 1)
    unclaimed = LeftOvers(surplus=[LeftOver(0, RecordAt(4, b"content"))])
    part = LanePart(name="open-0", verdict=LaneVerdict(lane="l", topic="orders", partition=0), left=unclaimed)

    files = open_job_files(str(tmp_path))
    sent = write_part(files, one.task, part)

    assert (len(sent.left), sent.left_count) == (0, 1)
    assert (read_part(files, one.task, "open-0") or sent).left == unclaimed


def test_every_finding_is_in_the_folder_and_the_driver_gets_the_first(tmp_path: Path) -> None:
    (one,) = work(tmp_path, 1)
    part = LanePart(name="2", verdict=LaneVerdict(lane="l", topic="orders", partition=0))
    for at in range(0, 400, 2):
        gone = OffsetRange(at, at + 1)
        part.verdict.find(Finding(kind="missing", generation=0, upstream=gone, downstream=None, records=1, what="gone"))

    files = open_job_files(str(tmp_path))
    light = write_part(files, one.task, part)

    assert (len(light.verdict.findings), light.verdict.left_out, light.verdict.counts.missing) == (SHOWN, 150, 200)
    table = pq.read_table(tmp_path / "findings" / "orders-0#2.parquet")
    assert table.column("upstream_first").to_pylist() == list(range(0, 400, 2))
    assert set(table.column("downstream_first").to_pylist()) == {None}


def test_the_parts_of_a_lane_are_one_lane_of_the_progress() -> None:
    parts = [
        LaneProgress(lane="a", state="done", done=5, total=5, records=5),
        LaneProgress(lane="a", state="waiting"),
        LaneProgress(lane="b", state="done"),
    ]

    found = {each.lane: (each.state, each.done) for each in by_lane(parts)}

    assert found == {"a": ("running", 5), "b": ("done", 0)}
    failed = by_lane([*parts, LaneProgress(lane="a", state="failed", note="no answer")])
    assert [(each.state, each.note) for each in failed] == [("failed", "no answer"), ("done", "")]


def test_latest_values_that_rules_have_made_are_not_compared_and_not_said_to_be() -> None:
    task = VerifyTask(settings=SETTINGS, topic="orders", partition=0, run_id="verify-1", target_compacts=True)
    verdict = a_verdict()
    verdict.counts.compacted = 4
    verdict.rules = {"ab" * 8: RuleUse(generation=0, first=0, next=10)}
    there = {"orders": Cleanup(compacts=True, expires=False)}

    assert _lanes_of_keys([task], [verdict], there, there) == []

    assert verdict.notes == ["the latest values of its keys are not compared: rules have made them"]
    assert (verdict.counts.compacted, verdict.counts.not_provable) == (0, 4)


def test_a_search_for_originals_that_fails_for_good_is_a_note_for_the_operator(
    tmp_path: Path, lanes: dict[int, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = work(tmp_path, 1)
    survey = SurveyedLane(chain=ChainEnd(generation=0, position=9, last=5), log_end=9)
    unclaimed = LeftOvers(surplus=[LeftOver(0, RecordAt(4, b"content"))])
    part = LanePart(name="0", verdict=LaneVerdict(lane="l", topic="orders", partition=0), left=unclaimed)
    whole = JoinedLane(one.task, survey)
    whole.add(part)
    request = JobRequest(run_id="verify-1", flow=SETTINGS, topics=("orders",), options=VerifyOptions())
    parts = verified_lanes._Parts(JobRun(request, open_job_files(str(tmp_path)), 0), set())
    monkeypatch.setattr(JobRun, "context", None)
    monkeypatch.setattr(
        verified_lanes, "run_lanes", lambda _, do, pieces, **_sizes: [do(each, LAST) for each in pieces]
    )

    lanes[0] = Retriable("no answer")
    lane = verified_lanes._Lane(task=one.task, size=0, survey=survey)
    found = verified_lanes._elsewhere(lane, whole, parts)

    assert found == {}
    (note,) = whole.end(found).notes
    assert whole.verdict.unsorted
    assert "could not be searched for the originals" in note
    assert "verify the lane again: no answer" in note


# The report: its words, its totals, and its page


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
    assert differs(ORIGINAL, replace(ORIGINAL, **parts)) == words


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

    verdict, there = a_verdict(), OffsetRange(20, 120)
    verdict.find(Finding(kind="foreign", generation=0, upstream=None, downstream=there, records=100, what="no run"))
    report = report_of([verdict], flow="a->b", seconds=2.0, made_at=1)
    assert report.verdict == "Nothing is wrong: 10 of 10 records are proved; 100 more that this flow has not written."
    assert (report.tone, [section.heading for section in report.sections]) == ("", ["Not proved", "Lanes"])
    assert "100 records from downstream offset 20 on are not of this flow" in report.sections[0].text[0]


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


def test_an_auditor_reads_which_rules_were_in_force_from_where_on_and_what_they_leave_standing() -> None:
    pii = ruled(version=2, fields={"email": {"hmac": "pii"}}).in_force
    first, second = a_verdict(), a_verdict(1)
    known, gone, none = pii.id.hex(), "ab" * 8, ""
    first.rules = {
        gone: RuleUse(generation=0, first=0, next=5, runs=1, copied=4, left_out=1),
        known: RuleUse(
            generation=0, first=5, next=9, runs=2, copied=3, filtered=1, searched=3, showing=1, shown_at=[6]
        ),
        none: RuleUse(generation=0, first=9, next=10, runs=1, copied=1),
    }
    second.rules = {known: RuleUse(generation=1, first=2, next=4, runs=1, copied=2, searched=2)}

    report = report_of([first, second], flow="a->b", seconds=1.0, made_at=1, rules={known: pii})

    assert is_clean([first, second])
    assert (report.tone, report.verdict.partition("proved. ")[2]) == (
        "",
        "1 of the copies show a value that their rule masks or drops elsewhere: see Rules.",
    )
    section = report.sections[0]
    by_topic, by_lane = section.tables
    assert (section.heading, by_topic.rows) == (
        "Rules",
        (
            ("orders", gone, None, "", "its document is gone", 1, 4, 0, 1, 0, 0),
            ("orders", known, 1, "pii 2", '{"fields":{"email":{"hmac":"pii"}}}', 3, 5, 1, 0, 5, 1),
            ("orders", "none", None, "", "nothing: records are copied as they are", 1, 1, 0, 0, 0, 0),
        ),
    )
    assert by_lane.rows == (
        ("orders-0", gone, 0, 4, 1, 4, 0, 1, 0, 0, ""),
        ("orders-0", known, 5, 8, 2, 3, 1, 0, 3, 1, "6"),
        ("orders-0", "none", 9, 9, 1, 1, 0, 0, 0, 0, ""),
        ("orders-1", known, 2, 3, 1, 2, 0, 0, 2, 0, ""),
    )
    assert "of 5 copies: one stands in 1 of them" in section.text[0]
    assert (first.rules[known].copied, first.rules[known].next) == (3, 9), "adding up changes no lane"
    assert "its document is gone" in render(report)


@pytest.mark.parametrize(("searched", "said"), [(0, "--against-source"), (3, "of 3 copies: none stands there")])
def test_a_report_says_whether_copies_were_searched(searched: int, said: str) -> None:
    verdict = a_verdict()
    verdict.rules = {"ab" * 8: RuleUse(generation=0, first=0, next=5, runs=1, copied=4, searched=searched)}

    report = report_of([verdict], flow="a->b", seconds=1.0, made_at=1)

    assert said in report.sections[0].text[0]
    assert report.tone == "good"
    assert "Rules" not in [each.heading for each in report_of([a_verdict()], flow="f", seconds=1, made_at=1).sections]


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
