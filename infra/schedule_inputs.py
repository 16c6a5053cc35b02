"""The inputs of a flow's schedules: the settings of the functions that they start, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from infra.deployment import ALIAS
from mirrorless.flow.naming import FORWARD, PULL, STANDBY
from mirrorless.scheduled.settings import CALLS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.deployment import FlowDeployment


def schedule_input(flow: FlowDeployment) -> dict[str, Any]:
    """Return the settings of the flow's scheduled functions: `mirrorless.scheduled.settings`."""
    forwarder = flow.flow.resource_name(FORWARD)
    settings = flow.flow.control_settings(f"{forwarder}:{ALIAS}", secret_arn=flow.secret_arn)
    if (calls := flow.control_calls_per_second) != CALLS_PER_SECOND:
        settings["control_calls_per_second"] = calls
    return settings


def schedule_input_text(flow: FlowDeployment) -> str:
    """Return `schedule_input` as JSON."""
    return _json(schedule_input(flow))


def pull_input_text(flow: FlowDeployment, shard: int) -> str:
    """Return the input of a shard's schedule as JSON."""
    return _json(flow.flow.pull_settings(shard))


def standby_input_text(flow: FlowDeployment) -> str:
    """Return the input of the standby's schedule as JSON."""
    return _json(flow.flow.standby_settings())


def longest_input(flow: FlowDeployment) -> int:
    """The bytes of the longest input of a flow's schedules."""
    texts = [schedule_input_text(flow)]
    if flow.has(PULL):
        texts.append(pull_input_text(flow, flow.flow.settings.schedule.shards - 1))
    if flow.has(STANDBY):
        texts.append(standby_input_text(flow))
    return max(len(text.encode()) for text in texts)


def _json(given: Mapping[str, Any]) -> str:
    return json.dumps(given, separators=(",", ":"), ensure_ascii=False)
