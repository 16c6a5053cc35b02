"""`mirrorless lanes reset`: how does a lane's chain end, and where does the next one begin?"""

from __future__ import annotations

import argparse
import time

from cli.args import offset
from cli.deployment import Stores
from cli.errors import BadInput
from cli.format import numbered
from cli.lanes_order import lane_of, tell
from cli.source import SourceView
from mirrorless.errors import LostRace
from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.lanes.operator_actions import NotAllowed, ResetPlan, plan_reset


def run_reset(arguments: argparse.Namespace) -> int:
    """Close the chain with a link, and let a new generation begin at `--to`."""
    deployment, stores, lane, state = lane_of(arguments)
    source = SourceView.of(deployment, lane.flow)
    to = _resolved(arguments.to, lane, source)
    head = stores.chains.heads([lane])[lane]
    try:
        plan = plan_reset(lane, head, state, to, reason=arguments.reason, now=time.time_ns() // 1_000_000)
    except NotAllowed as exc:
        raise BadInput(exc.what, where=exc.where, hint=exc.hint) from exc
    told = _reset_told(plan, head) + source.group_told(lane, deployment.flow(lane.flow).group_name(lane.topic), to)
    if arguments.execute:
        _carry_out(plan, stores)
    more = {"position": head.position, "generation": head.generation, "to": to, "to_generation": head.generation + 1}
    return tell(arguments, lane, told, changes=True, more=more)


def _carry_out(plan: ResetPlan, stores: Stores) -> None:
    """1. The loss, so that nothing is skipped in silence. 2. The doubt. 3. The link. 4. The stop and the orders."""
    if plan.loss is not None:
        stores.ledger.note(plan.loss)
    if plan.withdraw is not None:
        stores.chains.withdraw([plan.withdraw])
    try:
        stores.chains.reset(plan.link)
    except LostRace as exc:
        noted = ""
        if plan.loss is not None:
            noted = f" The ledger now says that {plan.loss.first} to {plan.loss.next - 1} were skipped: they were not."
        raise LostRace(
            f"the lane moved on while it was reset: nothing was reset.{noted}",
            where=exc.where,
            hint="look at the new plan, and give the order again if it still makes sense",
        ) from exc
    stores.states.begin_anew(plan.link.lane)


def _reset_told(plan: ResetPlan, head: Head) -> list[str]:
    link = plan.link
    told = [
        f"The lane stands at upstream offset {head.position}, generation {head.generation}.",
        f"Close this chain, and begin generation {link.to_generation} at upstream offset {link.next}: {link.reason}",
    ]
    if plan.loss is not None:
        count = numbered(plan.loss.next - plan.loss.first, "upstream offset")
        told.append(f"Skip {count} ({plan.loss.first} to {plan.loss.next - 1}), noted in the loss ledger.")
    if plan.repeated is not None:
        first, after = plan.repeated
        told.append(
            f"Upstream offsets {first} to {after - 1} were replicated before. If the source topic still holds those "
            "same records, they will be on the target twice."
        )
    if plan.withdraw is not None:
        told.append(
            f"Give up the run in doubt [{plan.withdraw.position}, {plan.withdraw.next}): nobody can tell any more "
            "whether its records are on the target."
        )
    told.append("The map translates offsets of the new generation only. Drop the lane's stop and quarantine orders.")
    return told


def destination(text: str) -> str | int:
    """What `--to` may say."""
    return text if text in {"earliest", "latest"} else offset(text)


def _resolved(to: str | int, lane: Lane, source: SourceView) -> int:
    """The upstream offset that `--to` means, asked of the source where it is not a number."""
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
