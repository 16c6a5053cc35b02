"""The operator of a soak run: a stop that is not the documented one is a finding."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.audit.log_changes import ResetPoint
from lab.cloud import FlowMapping, Lab
from lab.drills.lane_operator import LaneOperator, UndocumentedStop, UnnoticedLoss
from lab.faults.schedule import FaultKind, PlannedFault
from lab.faults.topic_changes import ChangedTopic
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.config.flow import Flow
from mirrorless.errors import Retriable
from mirrorless.lanes.operator_actions import advice
from mirrorless.protocol.log_parting import parted_stop, until_stop


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


def operator(
    folder: Path, *, mapping: FlowMapping | None = MAPPING, kind: FaultKind = "re-create remote topic"
) -> LaneOperator:
    """One of a lab in which the refresh finds nothing, and nothing else can be called."""
    return LaneOperator(
        lab=cast("Lab", SimpleNamespace(refresh_topics=lambda *_: None, check_lanes=lambda *_: None)),
        flow=cast("Flow", SimpleNamespace(name="source->target")),
        topic="orders",
        mapping=mapping,
        fault=PlannedFault(at=0.5, kind=kind, step="planned", seconds=1.0),
        remote_topic=ChangedTopic(bootstrap="127.0.0.1:1", topic="source.orders"),
        folder=folder,
    )


def test_a_scheduled_lane_is_reset_without_a_mapping_or_its_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop = Stop(reason="broken", upstream_offset=4, detail="why", at=1)
    commands: list[str] = []

    def run(_: LaneOperator, *words: str) -> dict[str, Any]:
        commands.append(shlex.join(words))
        return {"position": 10}

    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: stop})
    monkeypatch.setattr(LaneOperator, "_run", run)
    monkeypatch.setattr("lab.drills.lane_operator.ends", lambda *_: {2: 7})
    scheduled = operator(tmp_path, mapping=None)

    assert scheduled.attend()

    order = "lanes reset 'source->target' orders 2 --reason 're-create remote topic' --to"
    assert commands == [f"{order} earliest", f"{order} 0 --execute"]
    assert scheduled.resets == {2: ResetPoint(upstream=0, downstream=7, kept=False)}


@pytest.mark.parametrize("mapping", [None, MAPPING])
def test_what_is_printed_for_a_source_that_lost_its_end_is_executed_as_it_is_and_the_second_command_in_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mapping: FlowMapping | None
) -> None:
    lane = Lane(FlowName("source", "target"), "orders", 2)
    left = [
        parted_stop(lane, 22, position=45, now=1, replicated=((30, 45),)),
        until_stop(lane, ((30, 45),), now=1),
    ]
    position = iter([29, 30])
    commands, moved = list[str](), list[int]()

    def run(_: LaneOperator, *words: str, codes: Any = ()) -> dict[str, Any]:  # noqa: ARG001 -- as the real one
        commands.append(shlex.join(words))
        shown = {"topic": "orders", "partition": 2, "reason": "truncated", "what_to_do": advice(lane, left[0])}
        return {"stopped": [shown]}

    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: left[0]})
    monkeypatch.setattr(LaneOperator, "_position", lambda *_: next(position))
    monkeypatch.setattr(LaneOperator, "_run", run)
    monkeypatch.setattr(LaneOperator, "_switch", lambda *_, **__: None)
    monkeypatch.setattr(LaneOperator, "_set_offset", lambda _, __, ___, to: moved.append(to))
    monkeypatch.setattr("lab.drills.lane_operator.ends", lambda *_: {2: 9 - len(left)})
    attending = operator(tmp_path, mapping=mapping, kind="source outgrows its loss")

    assert attending.attend()
    del left[0]
    assert attending.attend()
    attending._attend()  # as the watch does
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {})
    assert attending.attend(), "what the watch reset is on its way, too"
    assert not attending.attend()

    listed = "lanes stopped 'source->target'"
    order = "lanes reset 'source->target' orders 2 --to {} --reason 'see status' --execute"
    assert commands == [listed, order.format("22 --until 30"), listed, order.format(45)]
    assert moved == ([] if mapping is None else [22, 45])
    assert attending.resets == {2: ResetPoint(upstream=45, downstream=8, kept=True, earlier=(7,))}


def test_an_order_that_is_refused_until_a_run_in_doubt_is_settled_is_given_again_behind_the_next_lane_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checks: list[object] = []

    def reset(_: LaneOperator) -> bool:
        if len(checks) < 2:
            raise Retriable("the newest run is in doubt")
        return True

    monkeypatch.setattr(LaneOperator, "_reset_stopped", reset)
    monkeypatch.setattr("lab.drills.lane_operator.SETTLED_WITHIN_SECONDS", 5.0)
    attending = operator(tmp_path, kind="source loses its end")
    attending.lab.check_lanes = lambda *_: checks.append(1)  # type: ignore[method-assign]

    assert attending.attend()


def test_a_stop_without_the_place_at_which_the_source_lost_its_end_is_no_finding_for_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop = Stop(reason="contradiction", upstream_offset=4, detail="why", at=1)
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {2: stop})
    attending = operator(tmp_path, kind="source loses its end")

    assert attending.attend()

    monkeypatch.setattr("lab.drills.lane_operator.NAMED_WITHIN_SECONDS", 0.0)
    with pytest.raises(UndocumentedStop, match="stopped as 'contradiction': why"):
        attending.attend()


def test_lanes_that_go_on_although_their_source_lost_what_was_copied_are_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(LaneOperator, "_stopped", lambda _: {})
    monkeypatch.setattr("lab.drills.lane_operator.STOPPED_WITHIN_SECONDS", 0.0)

    with pytest.raises(UnnoticedLoss, match=r"partitions \[2\] go on"):
        operator(tmp_path, kind="source loses its end").await_stopped([2])
