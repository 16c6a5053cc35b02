"""The function of heartbeats, checkpoints and the lane check: its handler, without clusters."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorless.scheduled.runner import TaskReport

SETTINGS = {
    "flow": {
        "flow": "us-east->eu-west",
        "source": {"alias": "us-east", "bootstrap": "b:9092"},
        "target": {"alias": "eu-west", "bootstrap": "b:9092"},
    }
}


class _Rounds:
    """A runner that reports one round in which all is well."""

    def __init__(self, *, on_report: Any, **_others: Any) -> None:
        self._report = on_report

    def run(self, *_tasks: Any, **_limits: Any) -> dict[str, TaskReport]:
        self._report(TaskReport(task="lanes", at=1, ms=1, figures={"doubts-open": 0}))
        return {}


@pytest.mark.parametrize(("heartbeats_seconds", "emitted"), [(10, None), (None, [0.0])])
def test_only_a_flow_without_heartbeats_emits_that_nothing_failed(
    heartbeats_seconds: int | None,
    emitted: list[float] | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    control = importlib.import_module("control")
    monkeypatch.setattr(control, "TaskRunner", _Rounds)
    monkeypatch.setattr(control, "wire", lambda _: SimpleNamespace(documents=None, tasks=lambda _lease: []))

    control.handler(SETTINGS | {"heartbeats_seconds": heartbeats_seconds}, None)

    assert json.loads(capsys.readouterr().out).get("task-errors") == emitted
