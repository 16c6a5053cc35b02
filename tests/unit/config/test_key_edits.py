"""Keys that are set in the text of a configuration."""

from __future__ import annotations

from difflib import ndiff
from pathlib import Path
from typing import Any

import pytest

from mirrorless.config import yaml_source
from mirrorless.config.key_edits import Whole, with_flow_keys
from mirrorless.errors import ConfigurationError

ROOT = Path(__file__).parents[3]
EXAMPLES = [ROOT / "replication.example.yaml", *sorted((ROOT / "docs" / "examples").glob("*.yaml"))]

KEYS: dict[str, Any] = {
    "trigger.overrides": Whole({"1.2": "mapping", "on": "mapping", ".*": "schedule"}),
    "schedule": Whole({"continuous": True, "shards": 2}),
    "mapping": {"maximum.batching.window.seconds": 4},
}
FLOW = "a->b"


def edited(text: str, keys: dict[str, Any] | None = None, flow: str = FLOW) -> str:
    return with_flow_keys(text, flow, keys or KEYS, origin="replication.yaml")


def flow_of(text: str, flow: str = FLOW) -> dict[str, Any]:
    """A flow's data."""
    found: dict[str, Any] = yaml_source.read(text, origin="replication.yaml").data["flows"][flow]
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_other_line_of_an_example_stays_as_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for flow in yaml_source.read(text, origin=path.name).data["flows"]:
        standing = flow_of(text, flow)
        keys = {key: value for key, value in KEYS.items() if key not in standing}
        after = edited(text, keys, flow=flow)

        gone = [line for line in ndiff(text.splitlines(), after.splitlines()) if line.startswith("- ")]
        assert all(flow in line and "{" in line for line in gone)  # a flow in one line stays in one line
        added = {key: each.keys if isinstance(each, Whole) else each for key, each in keys.items()}
        assert flow_of(after, flow) == {**standing, **added}


def test_keys_stand_below_the_name_of_the_flow_and_above_its_comments() -> None:
    text = """\
flows:
  a->b: # of the shop
    # the shop's own

    topics: [orders] # all
  # the next one
  b->a: {topics: [x]}
"""
    assert edited(text, {"schedule": {"shards": 2}}) == text.replace(
        "of the shop\n", "of the shop\n    schedule:\n      shards: 2\n"
    )


def test_a_value_that_stands_there_is_replaced_and_its_comment_stays() -> None:
    text = "flows:\n  a->b:\n    mapping:\n      mode: provisioned # for now\n      batch.size: 5\n"

    assert edited(text, {"mapping": {"mode": "on-demand"}}) == text.replace("provisioned", "on-demand")


def test_a_whole_section_replaces_the_one_that_stands_there_up_to_the_comments_behind_it() -> None:
    text = """\
flows:
  a->b:
    trigger.overrides:
      old: schedule # gone with it
      ".*": mapping

    # about topics
    topics: [orders]
"""
    assert (
        edited(text, {"trigger.overrides": Whole({"orders": "schedule"})})
        == """\
flows:
  a->b:
    trigger.overrides:
      orders: schedule

    # about topics
    topics: [orders]
"""
    )


def test_the_order_of_overrides_is_kept_for_the_first_that_matches_holds() -> None:
    found = flow_of(
        edited("flows: {a->b: {topics: [x]}}\n", {"trigger.overrides": Whole({"z": "mapping", "a": "schedule"})})
    )

    assert list(found["trigger.overrides"]) == ["z", "a"]


@pytest.mark.parametrize(
    "text",
    [
        "flows: {a->b: {}}\n",
        "flows: {a->b: {topics: [x]}}",
        "flows:\n  a->b: {mapping: {mode: on-demand}, topics: [x]}\n",
        "flows:\n  a->b:\n    mapping: {mode: on-demand}\n    topics: [x]\n",
        "flows:\n    a->b:\n        topics:\n        - x\n",
        "flows:\r\n  a->b:\r\n    topics: [x]\r\n",
        "flows:\n  a->b:\n    topics: [x]",
        '"flows":\n  "a->b":\n    "schedule":\n      "shards": 7\n    "topics": [x]\n',
        "x: &x [y]\nflows:\n  a->b: &own\n    topics: *x\n",
    ],
)
def test_a_flow_may_be_written_in_any_style(text: str) -> None:
    before, after = flow_of(text), flow_of(edited(text))

    assert after == {
        **before,
        "trigger.overrides": {"1.2": "mapping", "on": "mapping", ".*": "schedule"},
        "schedule": {"continuous": True, "shards": 2},
        "mapping": {**before.get("mapping", {}), "maximum.batching.window.seconds": 4},
    }


def test_lines_end_as_those_of_the_file() -> None:
    after = edited("flows:\r\n  a->b:\r\n    topics: [x]\r\n")

    assert after.count("\n") == after.count("\r\n") > 3


@pytest.mark.parametrize(
    "text",
    [
        "x: &shared {topics: [y]}\nflows:\n  a->b: *shared\n",
        "x: &shared {mode: on-demand}\nflows:\n  a->b:\n    mapping: *shared\n",
        "flows:\n  a->b: &a {topics: [x]}\n  b->a: *a\n",
    ],
)
def test_a_section_that_others_share_is_not_changed_and_the_keys_are_told(text: str) -> None:
    with pytest.raises(ConfigurationError, match="without changing more of the file") as caught:
        edited(text, {"mapping": {"batch.size": 1}})

    assert caught.value.hint == "add them by hand: {mapping: {batch.size: 1}}"
    assert caught.value.where == "replication.yaml: a->b"
