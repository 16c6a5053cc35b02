"""The tasks of a verification: one lane that fails leaves the others' results, and a second run ends what is left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.progress import LaneProgress, by_lane
from mirrorless.verify.comparison import LeftOver, RecordAt
from mirrorless.verify.explanation import LeftOvers
from mirrorless.verify.findings import SHOWN, Finding, LaneVerdict
from mirrorless.verify.joining import LanePart, joined
from mirrorless.verify.slices import WHOLE, SlicedLane, VerifiedSlice
from mirrorless.verify.task import VerifyTask
from mirrorless.verify.windows import ChainEnd
from spark.jobs.lane_tasks import TaskAttempt
from spark.jobs.verify import lanes as verified_lanes
from spark.jobs.verify.lanes import SliceWork
from spark.jobs.verify.results import write_part
from tests.support.verified_lane import SETTINGS, VerifiedLane

if TYPE_CHECKING:
    from pyspark import SparkContext

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


def work(folder: Path, partitions: int) -> list[SliceWork]:
    task = VerifyTask(settings=SETTINGS, topic="orders", partition=0, run_id="verify-1", files=str(folder))
    return [SliceWork(task=replace(task, partition=each)) for each in range(partitions)]


def proved(every: list[SliceWork], attempt: TaskAttempt) -> list[LanePart]:
    lane = VerifiedLane()
    return [verified_lanes._proved(one, lane.chains, attempt) for one in every]


def test_a_slice_whose_worker_died_behind_its_proof_is_not_read_again(tmp_path: Path, lanes: dict[int, object]) -> None:
    lanes[0] = Retriable("no answer")
    with pytest.raises(Retriable):
        proved(work(tmp_path, 1), FIRST)
    lanes[0] = VerifiedLane()
    before = proved(work(tmp_path, 1), FIRST)

    lanes[0] = AssertionError("it is read again")

    assert proved(work(tmp_path, 1), LAST) == before


def test_a_second_run_reads_what_the_first_has_not_proved(tmp_path: Path, lanes: dict[int, object]) -> None:
    lanes.update({0: VerifiedLane(), 1: Retriable("no answer")})
    assert [each.state for each in proved(work(tmp_path, 2), LAST)] == ["done", "failed"]

    lanes.update({0: AssertionError("it is read again"), 1: VerifiedLane()})
    again = [replace(each, known=each.task.partition == 0) for each in work(tmp_path, 2)]

    assert [each.state for each in proved(again, FIRST)] == ["done", "done"]


def test_a_slice_that_fails_leaves_the_counts_of_the_others(tmp_path: Path) -> None:
    (one,) = work(tmp_path, 1)
    survey = SlicedLane(chain=ChainEnd(generation=0, position=9, last=5), slices=(WHOLE, WHOLE, WHOLE))
    done = LanePart(number=0, verdict=LaneVerdict(lane="l", topic="orders", partition=0))
    done.verdict.counts.proved = 7

    verdict = joined(one.task, survey, [verified_lanes.failed_part(one.task, 2, "no answer"), done]).end({})

    assert (verdict.state, verdict.error, verdict.counts.proved) == ("failed", "1 of 3 slices: no answer", 7)


def test_every_finding_is_in_the_folder_and_the_driver_gets_the_first(tmp_path: Path) -> None:
    (one,) = work(tmp_path, 1)
    part = LanePart(number=2, verdict=LaneVerdict(lane="l", topic="orders", partition=0))
    for at in range(0, 400, 2):
        gone = OffsetRange(at, at + 1)
        part.verdict.find(Finding(kind="missing", generation=0, upstream=gone, downstream=None, records=1, what="gone"))

    files = open_job_files(str(tmp_path))
    light = write_part(files, one.task, part)

    assert (len(light.verdict.findings), light.verdict.left_out, light.verdict.counts.missing) == (SHOWN, 150, 200)
    table = pq.read_table(tmp_path / "findings" / "orders-0#2.parquet")
    assert table.column("upstream_first").to_pylist() == list(range(0, 400, 2))
    assert set(table.column("downstream_first").to_pylist()) == {None}


def test_the_slices_of_a_lane_are_one_lane_of_the_progress() -> None:
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
    slices = tuple(VerifiedSlice(number=2 * number) for number in range(2))
    survey = SlicedLane(chain=ChainEnd(generation=0, position=9, last=5), log_end=9, slices=slices)
    unclaimed = LeftOvers(surplus=[LeftOver(0, RecordAt(4, b"content"))])
    part = LanePart(number=0, verdict=LaneVerdict(lane="l", topic="orders", partition=0), left=unclaimed)
    whole = joined(one.task, survey, [part])
    monkeypatch.setattr(verified_lanes, "_chains", lambda _: None)
    monkeypatch.setattr(verified_lanes, "run_lanes", lambda _, search, pieces: [search(each, LAST) for each in pieces])

    lanes[0] = Retriable("no answer")
    found = verified_lanes._elsewhere(cast("SparkContext", None), one.task, survey, whole)

    assert found == {}
    (note,) = whole.end(found).notes
    assert whole.verdict.unsorted
    assert "could not be searched for the originals" in note
    assert "verify the lane again: no answer" in note
