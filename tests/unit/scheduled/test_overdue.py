"""Tasks that have not been done for three of their intervals."""

from __future__ import annotations

import pytest

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
