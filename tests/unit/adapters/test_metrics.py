"""Metrics: figures of a round that become metrics, troubles that are logged once, and the progress of a job."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from mirrorless.adapters.aws.metrics import emit_progress, emit_report
from mirrorless.jobs.progress import JobProgress, JobState, LaneProgress, LaneStateName, add_up
from mirrorless.lane import FlowName
from mirrorless.scheduled.runner import TaskReport


def test_what_alarms_are_for_is_a_metric_of_the_flow_and_the_rest_stands_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flow = FlowName("metrics", "eu-west")
    emit_report(flow, TaskReport(task="checkpoints", at=1, ms=17, figures={"groups": 3, "groups-not-ready": 1}))

    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    (declared,) = line["_aws"]["CloudWatchMetrics"]
    assert declared["Namespace"] == "Mirrorless"
    assert declared["Dimensions"] == [["source", "target"]]
    assert {metric["Name"] for metric in declared["Metrics"]} == {"task-errors", "task-troubles", "groups-not-ready"}
    assert (line["source"], line["target"], line["task"]) == ("metrics", "eu-west", "checkpoints")
    assert (line["task-errors"], line["groups-not-ready"], line["groups"], line["task-ms"]) == ([0.0], [1.0], 3, 17)


def test_what_stays_wrong_is_logged_once_and_counted_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    flow = FlowName("troubles", "eu-west")
    bad = TaskReport(task="heartbeats", at=1, ms=1, error="no answer", troubles=("one", "two"))
    for report in (bad, bad, TaskReport(task="heartbeats", at=1, ms=1), bad):
        emit_report(flow, report)

    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    said = [(line["level"], line.get("error") or line.get("trouble")) for line in lines if "level" in line]
    assert said == [("ERROR", "no answer"), ("WARNING", "one"), ("WARNING", "two")] * 2
    assert [line["task-errors"] for line in lines if "_aws" in line] == [[1.0], [1.0], [0.0], [1.0]]


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
