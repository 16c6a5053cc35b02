"""The operator of a soak run: a stop that is not the documented one is a finding."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.audit.log_changes import ResetPoint
from lab.cloud import FlowMapping, Lab
from lab.drills.lane_operator import LaneOperator, UndocumentedStop
from lab.faults.schedule import PlannedFault
from lab.faults.topic_changes import ChangedTopic
from mirrorless.config.flow import Flow
from mirrorless.lane_state import Stop


@pytest.mark.parametrize("reason", ["refused", "contradiction", "held"])
def test_a_lane_that_stops_for_another_reason_than_the_documented_one_is_not_reset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: Any
) -> None:
    stop = Stop(reason=reason, upstream_offset=4, detail="why", at=1)
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: stop})
    monkeypatch.setattr(LaneOperator, "_reset", lambda *_: pytest.fail("it was reset"))

    with pytest.raises(UndocumentedStop, match=f"stopped as '{reason}': why"):
        operator(tmp_path).attend()


def test_a_look_that_finds_no_stopped_lane_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {})

    assert operator(tmp_path).attend() is False


MAPPING = FlowMapping(uuid="uuid", flow="source->target", topic="orders", group_id="group")


def operator(folder: Path, *, mapping: FlowMapping | None = MAPPING) -> LaneOperator:
    """One of a lab in which the refresh finds nothing, and nothing else can be called."""
    return LaneOperator(
        lab=cast("Lab", SimpleNamespace(refresh_topics=lambda *_: None)),
        flow=cast("Flow", SimpleNamespace(name="source->target")),
        topic="orders",
        mapping=mapping,
        fault=PlannedFault(at=0.5, kind="re-create remote topic", step="planned", seconds=1.0),
        remote_topic=ChangedTopic(bootstrap="127.0.0.1:1", topic="source.orders"),
        folder=folder,
    )


def test_a_scheduled_lane_is_reset_without_a_mapping_or_its_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop = Stop(reason="broken", upstream_offset=4, detail="why", at=1)
    commands: list[tuple[int, str, tuple[str, ...]]] = []

    def command(_: LaneOperator, partition: int, to: str, *more: str) -> dict[str, Any]:
        commands.append((partition, to, more))
        return {"position": 10}

    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: stop})
    monkeypatch.setattr(LaneOperator, "_command", command)
    monkeypatch.setattr("lab.drills.lane_operator.ends", lambda *_: {2: 7})
    scheduled = operator(tmp_path, mapping=None)

    assert scheduled.attend()

    assert commands == [(2, "earliest", ()), (2, "0", ("--execute",))]
    assert scheduled.resets == {2: ResetPoint(upstream=0, downstream=7, kept=False)}
