"""A round of a task is one line of metrics; what stays wrong is logged once."""

from __future__ import annotations

import json

import pytest

from mirrorless.adapters.task_metrics import emit_report
from mirrorless.lane import FlowName
from mirrorless.scheduled.rounds import TaskReport


def test_each_figure_is_a_metric_of_the_flow_and_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    flow = FlowName("metrics", "eu-west")
    emit_report(flow, TaskReport(task="checkpoints", at=1, ms=17, figures={"groups": 3, "group-age-ms": 5}))

    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert {name: line[name] for name in ("source", "target", "task")} == {
        "source": "metrics",
        "target": "eu-west",
        "task": "checkpoints",
    }
    (declared,) = line["_aws"]["CloudWatchMetrics"]
    assert declared["Namespace"] == "Mirrorless"
    assert {metric["Name"]: metric["Unit"] for metric in declared["Metrics"]} == {
        "task-errors": "Count",
        "task-troubles": "Count",
        "task-ms": "Milliseconds",
        "groups": "Count",
        "group-age-ms": "Milliseconds",
    }
    assert [line[name] for name in ("task-errors", "task-ms", "groups")] == [[0.0], [17.0], [3.0]]


def test_what_stays_wrong_is_logged_once_and_counted_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    flow = FlowName("troubles", "eu-west")
    bad = TaskReport(task="heartbeats", at=1, ms=1, error="no answer", troubles=("one", "two"))
    for report in (bad, bad, TaskReport(task="heartbeats", at=1, ms=1), bad):
        emit_report(flow, report)

    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    said = [(line["level"], line.get("error") or line.get("trouble")) for line in lines if "level" in line]
    assert said == [("ERROR", "no answer"), ("WARNING", "one"), ("WARNING", "two")] * 2
    assert [line["task-errors"] for line in lines if "_aws" in line] == [[1.0], [1.0], [0.0], [1.0]]
