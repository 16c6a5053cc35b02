"""A job's metrics say how far it is, and at its end whether an operator is needed."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from mirrorless.adapters.aws.job_metrics import emit_progress
from mirrorless.jobs.progress import JobProgress, JobState, LaneProgress, LaneStateName, add_up


def progress(state: JobState) -> JobProgress:
    lanes = [LaneProgress(lane=each, state=each, records=10, bytes=100) for each in get_args(LaneStateName)]
    flow = "us-east->eu-west"
    return add_up(lanes, run_id="verify-1", kind="verify", flow=flow, state=state, phase="", started_at=0, at=1)


def test_a_line_has_the_progress_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    emit_progress(progress("running"), clean=None)

    line = json.loads(capsys.readouterr().out)
    assert (line["source"], line["target"], line["job"], line["run"]) == ("us-east", "eu-west", "verify", "verify-1")
    assert [line[f"job-{name}"] for name in ("records", "bytes", "lanes-left", "lanes-stopped", "needs-operator")] == [
        [50.0],
        [500.0],
        [2.0],
        [2.0],
        [0.0],
    ]
    (described,) = line["_aws"]["CloudWatchMetrics"]
    assert described["Namespace"] == "Mirrorless"
    assert described["Dimensions"] == [["source", "target", "job"]]


@pytest.mark.parametrize(
    "case", [("succeeded", True, 0.0), ("succeeded", False, 1.0), ("failed", None, 1.0), ("cancelled", None, 0.0)]
)
def test_the_end_says_whether_an_operator_is_needed(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    state, clean, expected = case

    emit_progress(progress(state), clean=clean)

    assert json.loads(capsys.readouterr().out)["job-needs-operator"] == [expected]
