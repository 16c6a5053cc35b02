"""`flow pause | resume`: the order, the wait for its effect, and `status` meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.deployment import Stores
from mirrorless.clock import now_ms
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.pause import MAPPINGS, PausedMappings, read_pause
from tests.frozen.small_flow import FLOW
from tests.support.commands import Answer

InLab = Callable[..., Answer]


@pytest.fixture
def control(stores: Stores) -> StateStore:
    """The control table of the small flow, which has one shard of scheduled topics."""
    return stores.documents


def said(in_lab: InLab, *words: str) -> tuple[int, dict[str, Any]]:
    answer = in_lab(*words, "--json")
    return answer.code, answer.json


def refreshed(control: StateStore, *disabled: str, quiet_at: int | None = None) -> None:
    """What `refresh_topics` writes."""
    order = read_pause(control, FLOW).order
    assert order is not None
    done = PausedMappings(disabled=disabled, quiet_at=quiet_at, order_at=order.at)
    control.write(FLOW, {MAPPINGS: msgspec.json.encode(done)})


def reported(control: StateStore, *, at: int, lanes: int) -> None:
    """What a shard of `pull` writes."""
    report = TaskReport(task="pull-0", at=at, ms=1, ok_at=at, counts={"pull-lanes": lanes})
    control.write(FLOW, {"task/pull-0": msgspec.json.encode(report)})


def test_a_pause_is_over_once_mappings_events_and_shards_have_ended(control: StateStore, in_lab: InLab) -> None:
    pause = ("flow", "pause", str(FLOW), "--execute", "--wait", "0", "--reason", "ticket 1")
    code, plan = said(in_lab, *pause[:3])
    assert (code, plan["executed"], plan["waits_for"]) == (0, False, "")
    assert not read_pause(control, FLOW).paused

    assert said(in_lab, *pause)[1]["waits_for"] == "refresh_topics to disable the mappings"
    refreshed(control, "1", quiet_at=now_ms())
    code, answer = said(in_lab, *pause)
    assert (code, answer["waits_for"][:32]) == (1, "events that may be under way, un")
    refreshed(control, "1", quiet_at=now_ms() - 60_000)
    reported(control, at=1, lanes=0)
    assert said(in_lab, *pause)[1]["waits_for"] == "pull-0 to leave its topics", "its report is an old one"
    reported(control, at=now_ms() + 1, lanes=3)
    assert said(in_lab, *pause)[1]["waits_for"] == "pull-0 to leave its topics"
    reported(control, at=now_ms() + 1, lanes=0)
    assert said(in_lab, *pause)[0] == 0

    order = read_pause(control, FLOW).order
    assert order is not None
    assert order.reason == "ticket 1"
    code, status = said(in_lab, "status", str(FLOW))
    assert status["flows"][0]["paused"]["order"]["reason"] == "ticket 1"


def test_a_resume_waits_until_the_mappings_are_enabled(control: StateStore, in_lab: InLab) -> None:
    said(in_lab, "flow", "pause", str(FLOW), "--execute", "--wait", "0")
    refreshed(control, "1", "2")
    resume = ("flow", "resume", str(FLOW), "--execute", "--wait", "0")

    code, answer = said(in_lab, *resume)
    assert (code, answer["executed"], answer["waits_for"]) == (1, True, "refresh_topics to enable 2 mappings")
    assert answer["plan"] == [
        "Enable the 2 mappings that the pause has disabled, within a minute or two; schedules read again."
    ]
    refreshed(control)
    assert said(in_lab, *resume)[0] == 0
    assert said(in_lab, "status", str(FLOW))[1]["flows"][0]["paused"] is None


def test_a_flow_without_refresh_topics_is_refused(control: StateStore, in_lab: InLab) -> None:
    text = Path("replication.yaml").read_text().replace(', "paid-.*", "eu-west[.]orders"]', "]")
    text = text.replace("trigger.overrides: {payments: schedule}", "refresh.topics.enabled: false")
    Path("replication.yaml").write_text(text)

    answer = in_lab("flow", "pause", str(FLOW), "--execute")

    assert (answer.code, "nothing would carry the order out" in answer.err) == (2, True)
    assert not read_pause(control, FLOW).paused
