"""The inputs of schedules, and tasks that have not been done for three of their intervals."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import control_settings, pull_settings
from mirrorless.scheduled.functions import overdue_tasks, task_intervals
from mirrorless.scheduled.runner import TaskReport
from tests.support.flows import make_control

SETTINGS = make_control()
NOW = 1_000_000_000


def reports(**done_at: int) -> dict[str, TaskReport]:
    """A report of every task, done just now or at these times."""
    return {
        task: TaskReport(task=task, at=NOW, ms=1, first_at=1, ok_at=done_at.get(task, NOW))
        for task in task_intervals(SETTINGS)
    }


@pytest.mark.parametrize("task", ["heartbeats", "checkpoints", "lanes", "topics", "configs", "acls"])
def test_each_task_is_overdue_after_three_of_its_own_intervals(task: str) -> None:
    every = max(60_000, int(task_intervals(SETTINGS)[task] * 1000))
    latest = NOW - 3 * every - 120_000

    assert overdue_tasks(SETTINGS, reports(**{task: latest}), NOW) == {}
    assert overdue_tasks(SETTINGS, reports(**{task: latest - 1}), NOW) == {task: ""}


def test_a_task_that_fails_again_and_again_is_overdue_with_its_error() -> None:
    failed = TaskReport(task="topics", at=NOW, ms=1, first_at=1, error="no rights")

    assert overdue_tasks(SETTINGS, reports() | {"topics": failed}, NOW) == {"topics": "no rights"}


def test_a_task_that_fails_from_its_first_round_on_has_three_intervals_all_the_same() -> None:
    began = TaskReport(task="topics", at=NOW, ms=1, first_at=NOW - 60_000, error="no rights")

    assert overdue_tasks(SETTINGS, reports() | {"topics": began}, NOW) == {}


def test_a_task_whose_function_never_came_to_its_end_counts_from_the_flow_s_first_report() -> None:
    known = {task: report for task, report in reports().items() if task != "acls"}
    young = {task: TaskReport(task=task, at=NOW, ms=1, first_at=NOW - 60_000, ok_at=NOW) for task in known}

    assert overdue_tasks(SETTINGS, known, NOW) == {"acls": ""}
    assert overdue_tasks(SETTINGS, young, NOW) == {}
    assert overdue_tasks(SETTINGS, {}, NOW) == {}, "a flow that has just been deployed"


def test_a_task_that_is_switched_off_is_not_missed() -> None:
    off = make_control(sync_topic_acls_enabled=False)

    assert overdue_tasks(off, reports(acls=1), NOW) == {}


FLOW = {
    "flow": "us-east->eu-west",
    "source": {"alias": "us-east", "bootstrap": "s:1"},
    "target": {"alias": "eu-west", "bootstrap": "t:1"},
}
CONTROL: dict[str, Any] = FLOW | {"trigger": "schedule", "trigger_overrides": {"orders": "mapping"}}


def test_a_shards_input_holds_the_settings_of_its_flow() -> None:
    settings = pull_settings({"flow": CONTROL, "shard": 1, "shards": 2, "continuous": True})

    assert settings.flow == control_settings(CONTROL)
    assert (settings.flow.triggers.of("orders"), settings.flow.triggers.of("logs")) == ("mapping", "schedule")
    assert (settings.continuous, settings.interval_seconds, settings.maximum_bytes_per_second) == (True, 60, None)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"flow": CONTROL, "shard": 2, "shards": 2}, "there is no shard 2 of 2"),
        ({"flow": CONTROL, "shard": 0}, "shards"),
        ({"flow": CONTROL | {"flow": "us-east"}, "shard": 0, "shards": 1}, "us-east"),
        ({"flow": CONTROL | {"trigger": "poll"}, "shard": 0, "shards": 1}, "poll"),
    ],
)
def test_an_input_that_is_wrong_is_refused_by_name(event: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        pull_settings(event)
