"""How is an order for one lane given, and how is its plan told? What the commands of `lanes` share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from cli.deployment import DeployedFlows, Stores
from mirrorless.lane import Lane
from mirrorless.lane_state import RUNNING, LaneState


def lane_of(arguments: argparse.Namespace) -> tuple[DeployedFlows, Stores, Lane, LaneState]:
    """The lane that FLOW, TOPIC and PARTITION name, with its state. Raises like `DeployedFlows.flow_name`."""
    deployment = DeployedFlows.of(arguments)
    lane = deployment.lane(arguments.flow, arguments.topic, arguments.partition)
    stores = deployment.stores(lane.flow)
    return deployment, stores, lane, stores.states.read([lane]).get(lane, RUNNING)


def tell(
    arguments: argparse.Namespace,
    lane: Lane,
    plan: list[str],
    *,
    changes: bool,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Show a plan, and whether it was carried out.

    Args:
        arguments: `json` and `execute`.
        lane: whose plan.
        plan: one sentence a step.
        changes: whether there is anything to carry out.
        more: for programs.
    """
    executed = changes and arguments.execute
    if arguments.json:
        print(json.dumps(lane_as_json(lane) | dict(more or {}) | {"plan": plan, "executed": executed}, indent=2))
        return 0
    print(f"{lane}:")
    for step in plan:
        print(f"  - {step}")
    if changes:
        print("Done." if executed else "Nothing was changed: this was the plan. Add --execute to carry it out.")
    return 0


def lane_as_json(lane: Lane) -> dict[str, Any]:
    """A lane for programs."""
    return {"flow": str(lane.flow), "topic": lane.topic, "partition": lane.partition}
