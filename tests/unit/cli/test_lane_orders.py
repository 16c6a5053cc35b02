"""`lanes reset` of a topic: one plan for all of its stopped lanes, and nothing is changed where one is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.deployment import DeployedFlows, Stores
from cli.main import main
from mirrorless.errors import LostRace
from mirrorless.lane import Lane
from mirrorless.lane_state import Stop
from mirrorless.run import Reset, Run
from tests.frozen.small_flow import FLOW, small_flow

RESET = (
    *("lanes", "reset", str(FLOW), "orders"),
    *("--to", "latest", "--reason", "created anew", "--lab", "lab.json", "--json"),
)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    """Of a flow whose lane `orders-1` is stopped as refused, lane 5 and 6 as recreated, and lane 7 is held."""
    with small_flow(tmp_path):
        found = DeployedFlows(config=Path("replication.yaml")).stores(FLOW)
        for partition, reason in ((5, "recreated"), (6, "recreated"), (7, "held")):
            lane = Lane(FLOW, "orders", partition)
            found.states.stop(lane, Stop(reason=reason, upstream_offset=0, detail="why", at=1))
        yield found


def said(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = main([*RESET, *more])
    return code, json.loads(capsys.readouterr().out)


def generations(stores: Stores) -> dict[int, int]:
    lanes = [Lane(FLOW, "orders", partition) for partition in range(8)]
    return {lane.partition: head.generation for lane, head in stores.chains.heads(lanes).items()}


def stopped(stores: Stores) -> list[int]:
    return sorted(lane.partition for lane in stores.states.stopped(FLOW))


def test_all_stopped_lanes_of_a_topic_are_reset_by_one_plan_but_for_those_that_are_held(
    stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    before = generations(stores)
    code, plan = said(capsys)
    assert (code, plan["executed"], [each["partition"] for each in plan["lanes"]]) == (0, False, [1, 5, 6])
    assert plan["notes"] == ["Partition 7: held by an order, and stays so."]
    assert (generations(stores), stopped(stores)) == (before, [1, 5, 6, 7])

    code, done = said(capsys, "--execute")

    assert (code, done["executed"]) == (0, True)
    assert generations(stores) == before | {partition: before[partition] + 1 for partition in (1, 5, 6)}
    assert stopped(stores) == [7]
    assert said(capsys, "--execute")[1]["lanes"] == [], "again: nothing is left"


def test_a_lane_that_moved_on_is_named_and_the_others_are_reset(
    stores: Stores, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = stores.chains.reset

    def but_for_five(link: Reset, given_up: Run | None = None) -> None:
        if link.lane.partition == 5:
            raise LostRace("it moved", where=str(link.lane))
        reset(link, given_up)

    monkeypatch.setattr(stores.chains, "reset", but_for_five)

    code, done = said(capsys, "--execute")

    assert code == 1
    assert {each["partition"]: bool(each["error"]) for each in done["lanes"]} == {1: False, 5: True, 6: False}
    assert stopped(stores) == [5, 7]


def test_one_refused_plan_changes_nothing(stores: Stores, capsys: pytest.CaptureFixture[str]) -> None:
    doubtful = Lane(FLOW, "orders", 0)
    stores.states.stop(doubtful, Stop(reason="refused", upstream_offset=12, detail="why", at=1))

    code, answer = said(capsys, "--execute")

    assert code == 2
    assert "in doubt" in answer["error"]["what"]
    assert stopped(stores) == [0, 1, 5, 6, 7]


def test_an_offset_is_one_partitions(stores: Stores, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([each if each != "latest" else "15" for each in RESET] + ["--execute"])

    assert code == 2
    assert "an offset is one partition's" in capsys.readouterr().out
    assert stopped(stores) == [1, 5, 6, 7]


@pytest.mark.usefixtures("stores")
def test_the_plan_for_several_lanes_is_a_line_each_and_says_once_what_is_true_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Six lanes had 33 lines, most of them the same."""
    assert main([each for each in RESET if each != "--json"]) == 0

    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[3:6]] == ["1", "5", "6"]
    assert shown.count("The map translates offsets of the new generation only.") == 1
    assert shown.count("created anew") == 1
    assert "Partition 7: held by an order, and stays so." in shown
