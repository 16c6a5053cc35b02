"""The failure of one lane is that lane's result: it ends no job, and loses no other lane's result."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.jobs.progress import LaneProgress, write_progress
from spark.jobs.lane_tasks import TaskAttempt, result_of

FIRST, LAST = TaskAttempt(number=0, last=False), TaskAttempt(number=3, last=True)


def outcome(failure: Exception, attempt: TaskAttempt) -> tuple[str, list[str]]:
    """The result of a lane that fails, and what was noted before another attempt."""
    notes: list[str] = []

    def work() -> str:
        raise failure

    return result_of(work, attempt, failed=lambda error: error, again=notes.append), notes


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Retriable("slow", where="orders-0"), "slow"),
        (SystemError("a client's own"), "SystemError"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_what_another_attempt_may_mend_is_left_to_spark_and_at_the_last_one_is_the_lanes_result(
    failure: Exception, words: str
) -> None:
    with pytest.raises(type(failure)):
        outcome(failure, FIRST)

    assert words in outcome(failure, LAST)[0]


def test_what_no_attempt_mends_is_the_lanes_result_at_once() -> None:
    assert "retention" in outcome(RecordsGone("retention was faster"), FIRST)[0]


def test_a_lane_whose_progress_is_not_taken_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "lanes").write_text("in the way of the folder of notes")

    write_progress(open_job_files(str(tmp_path)), "orders", 0, LaneProgress(lane="us-east->eu-west orders-0"))

    assert "us-east->eu-west orders-0 is not written" in capsys.readouterr().out
