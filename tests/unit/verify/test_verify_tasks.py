"""The tasks of a verification: one lane that fails leaves the others' results, and a second run ends what is left."""

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
from mirrorless.verify.comparison import LeftOver, RecordAt
from mirrorless.verify.explanation import LeftOvers
from mirrorless.verify.findings import SHOWN, Finding, LaneVerdict
from mirrorless.verify.parts import WHOLE, JoinedLane, LanePart, SurveyedLane
from mirrorless.verify.task import VerifyTask
from mirrorless.verify.windows import ChainEnd
from spark.jobs.driver import JobRun
from spark.jobs.lane_tasks import TaskAttempt
from spark.jobs.verify import lanes as verified_lanes
from spark.jobs.verify.lanes import PartWork
from spark.jobs.verify.results import read_part, write_part
from tests.support.verified_lane import SETTINGS, VerifiedLane

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
