"""Flow settings as they stand in templates: environments of forwarders, inputs of schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from infra.guard.stateful import Resource, Templates, value_at
from mirrorless.lane import FlowName
from mirrorless.naming import FLOW_VARIABLE, FORWARD_HANDLER
from mirrorless.scheduled.settings import ControlSettings

SIDES: Final = ("source", "target")


def forwarders(templates: Templates) -> dict[str, tuple[Resource, Mapping[str, Any]]]:
    """A flow's forwarder and its settings, by the flow's name."""
    found = {}
    for stack, template in templates.items():
        for id_, body in template.get("Resources", {}).items():
            function = Resource(stack, id_, body)
            text = value_at(function.properties, f"Environment/Variables/{FLOW_VARIABLE}")
            if function.properties.get("Handler") == FORWARD_HANDLER and isinstance(text, str):
                settings = json.loads(text)
                found[str(settings["flow"])] = function, settings
    return found


def controls(templates: Templates) -> dict[str, ControlSettings]:
    """What schedules tell the scheduled functions, by flow; older templates may know other keys than we do."""
    found = {}
    for template in templates.values():
        for body in template.get("Resources", {}).values():
            text = body.get("Properties", {}).get("Target", {}).get("Input")
            if body.get("Type") == "AWS::Scheduler::Schedule" and isinstance(text, str):
                told = json.loads(text)
                flow = {name: told["flow"][name] for name in ("flow", "policy", "separator") if name in told["flow"]}
                flow |= {side: {name: told["flow"][side][name] for name in ("alias", "bootstrap")} for side in SIDES}
                known = {name: told[name] for name in _KNOWN if name in told}
                settings = msgspec.convert(known | {"flow": flow}, type=ControlSettings)
                found[str(FlowName.parse(settings.flow.flow))] = settings
    return found


_KNOWN: Final = (
    "aliases",
    "internal_topic_separator_enabled",
    "topics",
    "topics_exclude",
    "heartbeats_replication",
    "refresh_topics_seconds",
    "mapping",
)
"""What decides whether a topic is found, and what its mapping is like."""
