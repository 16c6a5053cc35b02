"""Changes of triggers in a lab: what a deployment would change, in its order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.cloud import FlowMapping, Lab, function_name
from lab.faults.trigger_changes import change_triggers
from mirrorless.chain.lane import FlowName
from mirrorless.config.loading import load
from mirrorless.errors import ConfigurationError
from mirrorless.scheduled.settings import control_settings
from tests.support.commands import replication_yaml

FLOW = FlowName("a", "b")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab whose schedules are made and do not run, without servers."""
    lab = Lab(
        configuration=load(replication_yaml("a->b: {topics: [orders, bills], schedule: {shards: 1}}")), folder=tmp_path
    )
    lab.scheduled.deploy(lab.flows, variables={}, forwarder=function_name)
    return lab


def test_a_topic_leaves_the_template_and_its_schedules_follow(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = [FlowMapping(uuid=topic, flow="a->b", topic=topic, group_id=topic) for topic in ("orders", "bills")]
    gone: list[str] = []
    monkeypatch.setattr(Lab, "flow_mappings", mapped)
    monkeypatch.setattr(Lab, "unmap_topic", lambda _, mapping: gone.append(mapping.topic))

    change_triggers(lab, FLOW, {"orders": "schedule"})

    assert gone == ["orders"]
    assert lab.flows[0].template_topics == ("bills",)
    refresh = control_settings(json.loads(lab.scheduled.timers["mirrorless-refresh-topics-a_b"].event))
    assert refresh.trigger_of("orders") == "schedule"


def test_a_topic_does_not_come_back_into_the_template(lab: Lab) -> None:
    """As the guard refuses it: its mapping would go on by old offsets."""
    change_triggers(lab, FLOW, {"orders": "schedule"})

    with pytest.raises(ConfigurationError, match="orders would be mapped by the template again"):
        change_triggers(lab, FLOW, {})
    change_triggers(lab, FLOW, {"orders": "mapping"})

    assert lab.flows[0].template_topics == ("bills",)
