"""`--all-from`: every flow from one cluster in one command, each with a result of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from mirrorless.lane_state import Stop
from tests.support.failover_world import FailoverWorld

WEST, SOUTH = "us-east->eu-west", "us-east->ap-south"

Command = Callable[..., tuple[int, Any]]


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
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command for all flows from us-east: its exit code, and its JSON."""
    config = tmp_path / "replication.yaml"
    config.write_text(
        """
clusters:
  us-east: {bootstrap.servers: nowhere:1}
  eu-west: {bootstrap.servers: nowhere:2}
  ap-south: {bootstrap.servers: nowhere:3}
flows:
  us-east->eu-west: {topics: [orders, payments]}
  us-east->ap-south: {topics: [orders, payments]}
  eu-west->ap-south: {topics: [bills]}
"""
    )

    def run(*words: str) -> tuple[int, Any]:
        options = ["--all-from", "us-east", "--json", "--config", str(config), "--report", str(tmp_path / "reports")]
        code = main([*words, *options])
        printed = capsys.readouterr()
        answer = json.loads(printed.out)
        return code, answer.get("flows", answer)

    return run


def test_where_one_flow_is_refused_none_begins(worlds: dict[str, FailoverWorld], command: Command) -> None:
    stopped = worlds[SOUTH].lanes[0]
    worlds[SOUTH].states.stop(stopped, Stop(reason="refused", upstream_offset=0, detail="too large", at=1))
    before = deepcopy([(each.documents.documents, each.source_acls.there) for each in worlds.values()])

    code, said = command("failover", "--planned", "--execute")

    assert code == 2
    assert "records wait behind stopped lanes" in str(said)
    assert [(each.documents.documents, each.source_acls.there) for each in worlds.values()] == before


def test_a_flow_that_is_unfinished_keeps_no_other_from_its_end_and_is_continued(
    worlds: dict[str, FailoverWorld], command: Command, tmp_path: Path
) -> None:
    worlds[SOUTH].meanwhile = lambda: None  # nothing replicates: a forwarder without rights, for one

    code, (west, south) = command("failover", "--planned", "--execute")

    assert code == 1
    assert (west["flow"], west["error"], west["totals"]["clean"]) == (WEST, "", True)
    assert (south["flow"], south["totals"]) == (SOUTH, None)
    assert "records wait on us-east and nothing moves" in south["error"]
    assert len(list((tmp_path / "reports").iterdir())) == 2
    assert worlds[WEST].document() is not None
    ended = worlds[WEST].documents.documents.copy()

    worlds[SOUTH].meanwhile = worlds[SOUTH].replicate
    code, (west, south) = command("failover", "--planned", "--execute")

    assert code == 0
    assert all(step["done"] for step in west["plan"]), "what has ended is shown again, and not done again"
    assert {key: text for key, text in worlds[WEST].documents.documents.items() if "lease" not in key[1]} == {
        key: text for key, text in ended.items() if "lease" not in key[1]
    }
    assert [step["step"] for step in south["plan"] if step["done"]] == ["check", "fence-producers", "standstill"]
    assert south["totals"]["clean"]
    assert len(list((tmp_path / "reports").iterdir())) == 4


def test_all_flows_fail_back_with_one_command(worlds: dict[str, FailoverWorld], command: Command) -> None:
    assert command("failover", "--planned", "--execute")[0] == 0

    code, flows = command("failback", "--execute")

    assert code == 0
    assert [each["totals"]["finished"] for each in flows] == [True, True]
    assert [world.states.fences for world in worlds.values()] == [{}, {}]
