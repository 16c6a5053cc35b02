"""A round of a task is one line of metrics; what stays wrong is logged once."""

from __future__ import annotations

import json

import pytest

from mirrorless.adapters.aws.task_metrics import emit_report
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
