"""`--all-from`: every flow from one cluster in one command, each with its own result; and what is said meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from copy import deepcopy
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.failover import FlowCommand
from mirrorless.chain.lane_state import Stop
from mirrorless.failover.state import PlannedStep
from mirrorless.scheduled.runner import TaskReport
from tests.support.chains import FLOW
from tests.support.commands import Command, replication_yaml
from tests.support.failover_world import DRILL, FailoverWorld

WEST, SOUTH = "us-east->eu-west", "us-east->ap-south"

ForAll = Callable[..., tuple[int, Any]]
"""A command for all flows from us-east: its exit code, and its JSON."""


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> dict[str, FailoverWorld]:
    """The flows. Each has a world of its own, in which it is called us-east->eu-west."""
    found = {WEST: FailoverWorld(), SOUTH: FailoverWorld()}
    for world in found.values():
        world.produce(4)
        world.meanwhile = world.replicate
    monkeypatch.setattr("cli.failover.effects_of", lambda _deployment, flow, _arguments: found[str(flow)].effects())
    return found


@pytest.fixture
def for_all(tmp_path: Path, command: Command) -> ForAll:
    topics = "{topics: [orders, payments]}"
    config, reports = tmp_path / "replication.yaml", tmp_path / "reports"
    config.write_text(
        replication_yaml(f"{WEST}: {topics}", f"{SOUTH}: {topics}", "eu-west->ap-south: {topics: [bills]}")
    )

    def run(*words: str) -> tuple[int, Any]:
        answer = command(*words, "--all-from", "us-east", "--json", "--config", str(config), "--report", str(reports))
        return answer.code, answer.json.get("flows", answer.json)

    return run


def test_where_one_flow_is_refused_none_begins(worlds: dict[str, FailoverWorld], for_all: ForAll) -> None:
    stopped = worlds[SOUTH].lanes[0]
    worlds[SOUTH].states.stop(stopped, Stop(reason="refused", upstream_offset=0, detail="too large", at=1))
    before = deepcopy([(each.documents.documents, each.source_acls.there) for each in worlds.values()])

    code, said = for_all("failover", "--planned", "--execute")

    assert code == 2
    assert "records wait behind stopped lanes" in str(said)
    assert [(each.documents.documents, each.source_acls.there) for each in worlds.values()] == before


def test_a_flow_that_is_unfinished_keeps_no_other_from_its_end_and_is_continued(
    worlds: dict[str, FailoverWorld], for_all: ForAll, tmp_path: Path
) -> None:
    worlds[SOUTH].meanwhile = lambda: None  # nothing replicates: a forwarder without rights, for one

    code, (west, south) = for_all("failover", "--planned", "--execute")

    assert code == 1
    assert (west["flow"], west["error"], west["totals"]["clean"]) == (WEST, "", True)
    assert (south["flow"], south["totals"]) == (SOUTH, None)
    assert "records wait on us-east and nothing moves" in south["error"]
    assert len(list((tmp_path / "reports").iterdir())) == 2
    assert worlds[WEST].document() is not None
    ended = worlds[WEST].documents.documents.copy()

    worlds[SOUTH].meanwhile = worlds[SOUTH].replicate
    code, (west, south) = for_all("failover", "--planned", "--execute")

    assert code == 0
    assert all(step["done"] for step in west["plan"]), "what has ended is shown again, and not done again"
    assert {key: text for key, text in worlds[WEST].documents.documents.items() if "lease" not in key[1]} == {
        key: text for key, text in ended.items() if "lease" not in key[1]
    }
    assert not [step["step"] for step in south["plan"] if step["done"]], "what was seen before is seen again"
    assert south["totals"]["clean"]
    assert len(list((tmp_path / "reports").iterdir())) == 4


def test_a_lost_source_has_an_exit_code_of_its_own_unless_something_is_known_to_be_missing(
    worlds: dict[str, FailoverWorld], for_all: ForAll
) -> None:
    for world in worlds.values():
        world.replicate()
        world.lose_source()

    code, flows = for_all("failover", "--source-lost", "--execute")

    assert code == 4
    assert [(each["totals"]["clean"], each["totals"]["missing"]) for each in flows] == [(False, [])] * 2
    ends = {"topic-ends/0": msgspec.json.encode({"orders": [5, 5], "payments": [5]})}
    report = TaskReport(task="topics", at=1, ms=1, ok_at=1)
    worlds[SOUTH] = FailoverWorld()
    worlds[SOUTH].produce(4)
    worlds[SOUTH].replicate(1)
    worlds[SOUTH].documents.write(FLOW, ends | {"task/topics": msgspec.json.encode(report)})
    worlds[SOUTH].lose_source()
    assert for_all("failover", "--source-lost", "--execute")[0] == 3


def test_all_flows_fail_back_with_one_command(worlds: dict[str, FailoverWorld], for_all: ForAll) -> None:
    assert for_all("failover", "--planned", "--execute")[0] == 0

    code, flows = for_all("failback", "--execute")

    assert code == 0
    assert [each["totals"]["finished"] for each in flows] == [True, True]
    assert [world.states.flow_stops for world in worlds.values()] == [{}, {}]


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Ctrl-C, pressed in a command's own thread, or SIGTERM; returns when the command has seen it."""
    seen = threading.Event()

    def say(text: str) -> None:
        if text.endswith(": the command ends in its next pause, or before its next step"):
            seen.set()

    monkeypatch.setattr("cli.failover._say", say)

    def press(number: int = signal.SIGINT) -> None:
        seen.clear()
        os.kill(os.getpid(), number)
        assert seen.wait(20)

    return press


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("failover", "--planned"), signal.SIGINT),
        (("failover", "--planned", "--fence", "wait"), signal.SIGTERM),
        (("failback",), signal.SIGTERM),
    ],
)
def test_ctrl_c_ends_a_command_in_any_pause_and_it_goes_on_when_it_is_run_again(
    worlds: dict[str, FailoverWorld],
    for_all: ForAll,
    ctrl_c: Callable[..., None],
    words: tuple[str, ...],
    number: signal.Signals,
) -> None:
    world = worlds[WEST]
    if words == ("failback",):
        assert for_all("failover", "--planned", "--execute")[0] == 0
    worlds[SOUTH].meanwhile = lambda: None if pressed else worlds[SOUTH].replicate()
    pressed, at = False, 0
    before = world.document()
    ended_in = set()

    def meanwhile() -> None:
        nonlocal pressed
        world.replicate()
        assert not pressed, "it goes on"
        if next(pauses) == at:
            pressed = True
            ctrl_c(number)

    world.meanwhile = meanwhile
    for at in count():  # noqa: B007 -- read where it waits
        pressed, pauses = False, count()
        code, flows = for_all(*words, "--execute")
        if not pressed:
            break
        west = next(each for each in flows if each["flow"] == WEST)
        assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        document = world.document()
        assert document is not None
        done = [step for step in west["plan"] if document.result(step["step"]) is not None]
        assert f"cancelled behind step {done[-1]['number']}/{len(west['plan'])}, {done[-1]['step']}." in west["error"]
        ended_in.add(west["plan"][len(done)]["step"])
        assert not world.documents.leases, "the next command need not wait"
    assert before != world.document()
    assert code == 0
    assert ended_in >= ({"standstill", "reconcile"} if words == ("failback",) else {"standstill", "drain"})
    assert all(each["totals"]["clean"] for each in flows)


def test_ctrl_c_inside_a_step_lets_it_end_and_begins_no_other(
    worlds: dict[str, FailoverWorld], for_all: ForAll, ctrl_c: Callable[..., None]
) -> None:
    world = worlds[WEST]
    commit = world.shadows.commit

    def pressed(*words: Any) -> None:
        commit(*words)
        ctrl_c()

    world.produce(3)
    world.replicate()
    for lane in world.lanes:
        world.clusters.read(world.clusters.source, "shop", lane, 2)
    world.clusters.act()
    world.shadows.commit = pressed  # type: ignore[method-assign,assignment]  # a key that is pressed meanwhile

    code, (west, _) = for_all("failover", "--drill", "--execute")

    assert code == 130
    assert "cancelled behind step 3/4, shadow-groups." in west["error"]
    assert world.shadows.offsets, "they are deleted by the next step"
    world.shadows.commit = commit  # type: ignore[method-assign]  # theirs again
    assert for_all("failover", "--drill", "--execute")[0] in {0, 3}
    assert not world.shadows.offsets


def test_a_step_that_says_nothing_is_named_again_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = iter([100.0, 101.4, 101.6, 101.6, 103.0, 103.2, 103.2])
    monkeypatch.setattr("cli.failover.time", SimpleNamespace(monotonic=at.__next__))
    each = FlowCommand(flow=FLOW, command=FailoverWorld().command(DRILL))
    each.command.plan = [PlannedStep(number=1, step="drain", sentence="", done=False)]

    each.begin(each.command.plan[0])
    for _ in range(4):
        each.name_step()

    said = [f"{FLOW}: 1/1 drain: at work for {passed} s" for passed in ("1.6", "3.2")]
    assert capsys.readouterr().err.splitlines() == said
