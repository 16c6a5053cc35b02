"""Changes of triggers while a lab runs: the mappings and schedules that a deployment of them would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lab.cloud import Lab, function_name
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError
from mirrorless.flow.triggers import Trigger


def change_triggers(lab: Lab, name: FlowName, overrides: Mapping[str, Trigger], **others: Any) -> None:
    """Give a flow other `trigger.overrides`: first mappings of the template go, then schedules get their new input.

    Args:
        lab: it runs.
        name: the flow's.
        overrides: the entries.
        others: more of the flow's settings, by the names of FlowSection.

    Raises:
        ConfigurationError: a literal topic would be the template's again, which the guard refuses; or the flow has
            scheduled topics now, and the lab was started without their schedules.
    """
    before = lab.configuration.flow(name)
    settings = before.settings.model_copy(update={**others, "trigger_overrides": dict(overrides)})
    after = replace(before, settings=settings)
    if anew := sorted({*after.template_topics} - {*before.template_topics}):
        raise ConfigurationError(
            f"{', '.join(anew)} would be mapped by the template again",
            where=f"flows.{name}.trigger.overrides",
            hint="keep an entry of each: `mapping`",
        )
    flows = {each: after if each == name else flow for each, flow in lab.configuration.flows.items()}
    lab.configuration = replace(lab.configuration, flows=flows)
    gone = {*before.template_topics} - {*after.template_topics}
    for mapping in lab.flow_mappings:
        if mapping.flow == str(name) and mapping.topic in gone:
            lab.unmap_topic(mapping)
    (flow,) = (each for each in lab.flows if each.name == name)
    lab.scheduled.change(flow, forwarder=function_name)
