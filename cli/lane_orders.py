"""`mirrorless lanes quarantine | reset`: orders for a single lane.

`quarantine` leaves out the record that the target refused. `reset` closes the lane's chain with a link, after which a
new generation begins at another upstream offset.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from cli.args import BadInput, offset
from cli.clusters import SourceView
from cli.deployment import DeployedFlows, Stores
from cli.output import PLAN_ONLY, lane_as_json, numbered, print_json
from mirrorless.clock import now_ms
from mirrorless.errors import LostRace
from mirrorless.lane import Lane
from mirrorless.lane_state import RUNNING, Head, LaneState
from mirrorless.lanes.operator_actions import NotAllowed, ResetPlan, check_quarantine, plan_reset


def run_quarantine(arguments: argparse.Namespace) -> int:
    """Leave out one record, and drop the stop."""
    _, stores, lane, state = _named_lane(arguments)
    try:
        check_quarantine(lane, state, arguments.offset)
    except NotAllowed as exc:
        raise BadInput(exc.what, where=exc.where, hint=exc.hint) from exc
    why = state.stop.detail if state.stop is not None else ""
    plan = [
        f"The target refused the record at upstream offset {arguments.offset}: {why}",
        "Leave out exactly this record, note it in the loss ledger when the lane passes it, and drop the stop.",
    ]
    if arguments.execute:
        stores.states.quarantine(lane, arguments.offset)
    return _answer(arguments, lane, plan, changes=True)


def run_reset(arguments: argparse.Namespace) -> int:
    """Close the chain with a link, and let a new generation begin at `--to`."""
    deployment, stores, lane, state = _named_lane(arguments)
    source = SourceView.of(deployment, lane.flow)
    to = _resolved(arguments.to, lane, source)
    head = stores.chains.heads([lane])[lane]
    try:
        plan = plan_reset(lane, head, state, to, reason=arguments.reason, now=now_ms())
    except NotAllowed as exc:
        raise BadInput(exc.what, where=exc.where, hint=exc.hint) from exc
    group = deployment.flow(lane.flow).group_name(lane.topic)
    steps = _reset_steps(plan, head) + source.reset_advice(lane, group, to)
    if arguments.execute:
        _carry_out(plan, stores)
    more = {"position": head.position, "generation": head.generation, "to": to, "to_generation": head.generation + 1}
    return _answer(arguments, lane, steps, changes=True, more=more)


def _carry_out(plan: ResetPlan, stores: Stores) -> None:
    """1. The loss, so that nothing is skipped in silence. 2. The link. 3. The stop and the orders."""
    if plan.loss is not None:
        stores.ledger.note(plan.loss)
    try:
        stores.chains.reset(plan.link, plan.given_up)
    except LostRace as exc:
        noted = ""
        if plan.loss is not None:
            noted = f" The ledger now says that {plan.loss.first} to {plan.loss.next - 1} were skipped: they were not."
        raise LostRace(
            f"the lane moved on while it was reset: nothing was reset.{noted}",
            where=exc.where,
            hint="look at the new plan, and run the command again if it still makes sense",
        ) from exc
    stores.states.begin_anew(plan.link.lane)


def _reset_steps(plan: ResetPlan, head: Head) -> list[str]:
    link = plan.link
    steps = [
        f"The lane stands at upstream offset {head.position}, generation {head.generation}.",
        f"Close this chain, and begin generation {link.to_generation} at upstream offset {link.next}: {link.reason}",
    ]
    if plan.loss is not None:
        count = numbered(plan.loss.next - plan.loss.first, "upstream offset")
        steps.append(f"Skip {count} ({plan.loss.first} to {plan.loss.next - 1}), noted in the loss ledger.")
    if plan.repeated is not None:
        first, after = plan.repeated
        steps.append(
            f"Upstream offsets {first} to {after - 1} were replicated before. If the source topic still holds those "
            "same records, they will be on the target twice."
        )
    if plan.given_up is not None:
        steps.append(
            f"Give up the run in doubt [{plan.given_up.position}, {plan.given_up.next}): it can no longer be known "
            "whether its records are on the target."
        )
    steps.append("The map translates offsets of the new generation only. Drop the lane's stop and quarantine orders.")
    return steps


def destination(text: str) -> str | int:
    """An upstream offset, `earliest` or `latest`."""
    return text if text in {"earliest", "latest"} else offset(text)


def _resolved(to: str | int, lane: Lane, source: SourceView) -> int:
    """The upstream offset that `--to` means; read from the source where it is not a number."""
    if isinstance(to, int):
        return to
    extent = source.extent(lane)
    if extent is None:
        raise BadInput(
            f"--to {to} cannot be resolved: {source.trouble or 'the source has no such partition'}",
            where=str(lane),
            hint="name the offset as a number",
        )
    return extent.start if to == "earliest" else extent.end


def _named_lane(arguments: argparse.Namespace) -> tuple[DeployedFlows, Stores, Lane, LaneState]:
    """The lane that FLOW, TOPIC and PARTITION name, with its state. Raises like `DeployedFlows.flow_name`."""
    deployment = DeployedFlows.of(arguments)
    lane = deployment.lane(arguments.flow, arguments.topic, arguments.partition)
    stores = deployment.stores(lane.flow)
    return deployment, stores, lane, stores.states.read([lane]).get(lane, RUNNING)


def _answer(
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
        print_json(lane_as_json(lane) | dict(more or {}) | {"plan": plan, "executed": executed})
        return 0
    print(f"{lane}:")
    for step in plan:
        print(f"  - {step}")
    if changes:
        print("Done." if executed else PLAN_ONLY)
    return 0
