"""The function of heartbeats, checkpoints and the lane check: its handler, without clusters."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from mirrorless.flow.triggers import Trigger
from mirrorless.scheduled.runner import TaskReport
from tests.support.flows import make_flow

SETTINGS = msgspec.to_builtins(make_flow())


class _Rounds:
    """A runner that reports one round in which all is well."""

    stored: ClassVar[dict[str, TaskReport]] = {}

    def __init__(self, *, on_report: Any, on_start: Any, **_others: Any) -> None:
        self._report, self._start = on_report, on_start

    def run(self, *_tasks: Any, **_limits: Any) -> dict[str, TaskReport]:
        self._start(self.stored)
        self._report(TaskReport(task="lanes", at=1, ms=1, counts={"doubts-open": 0}))
        return {}


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function, whose runner runs nothing."""
    found = importlib.import_module("control")
    monkeypatch.setattr(found, "TaskRunner", _Rounds)
    monkeypatch.setattr(found, "_works", lambda *_: True)
    monkeypatch.setattr(found, "wire", lambda _: SimpleNamespace(documents=None, tasks=lambda _lease: []))
    return found


@pytest.mark.parametrize(("heartbeats", "emitted"), [(True, None), (False, [0.0])])
def test_only_a_flow_without_heartbeats_emits_that_nothing_failed(
    control: Any, capsys: pytest.CaptureFixture[str], emitted: list[float] | None, *, heartbeats: bool
) -> None:
    control.handler(SETTINGS | {"emit_heartbeats_enabled": heartbeats}, None)

    assert json.loads(capsys.readouterr().out).get("task-errors") == emitted


@pytest.mark.parametrize("stands_by", [False, True])
def test_overdue_tasks_are_a_metric_of_the_home_before_any_task_runs(
    control: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, stands_by: bool
) -> None:
    """A defect of one task ends the run: what was written after it would never be seen."""
    stored = TaskReport(task="topics", at=2, ms=1, first_at=1, ok_at=1, error="no rights")
    monkeypatch.setattr(_Rounds, "stored", {"topics": stored})

    control.handler(SETTINGS | {"stands_by": stands_by}, None)

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    metric = {} if stands_by else {"tasks-overdue": [6.0]}
    assert {name: value for name, value in lines[0].items() if name == "tasks-overdue"} == metric
    assert any("topics: no rights" in str(line.get("trouble")) for line in lines) is not stands_by


def test_an_environment_is_wired_anew_where_entries_of_triggers_only_changed_places() -> None:
    """The first one that matches a topic holds."""
    entries: list[tuple[str, Trigger]] = [("logs", "mapping"), ("l.*", "schedule")]
    wire = importlib.import_module("control").wire

    wired = [
        wire(make_flow(region="eu-west-1", trigger_overrides=dict(order)))
        for order in (entries, entries[::-1], entries)
    ]

    assert [each.settings.triggers.of("logs") for each in wired] == ["mapping", "schedule", "mapping"]
    assert wired[2] is wired[0]
