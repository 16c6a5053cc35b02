"""`mirrorless lanes stopped | resume | quarantine | reset`: which lanes wait for the operator, and how do they go on?

Whatever changes state shows its plan first, and only `--execute` carries it out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

from cli.arguments import add_deployment, add_lane, add_order, offset
from cli.bad_input import BadInput
from cli.deployment import Deployment, Stores
from cli.source import SourceView
from cli.wording import moment, numbered
from mirrorless.chain import RUNNING, Head, LaneState, Stop
from mirrorless.errors import LostRace
from mirrorless.intervention import NotAllowed, ResetPlan, advice, check_quarantine, plan_reset
from mirrorless.lane import FlowName, Lane


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `lanes` with its four."""
    lanes = subparsers.add_parser("lanes", help="list stopped lanes, and bring them back")
    commands = lanes.add_subparsers(required=True, metavar="COMMAND")

    stopped = commands.add_parser(
        "stopped",
        help="list the lanes that wait for you, why, and what to do",
        epilog="Example: mirrorless lanes stopped 'us-east->eu-west'",
    )
    stopped.add_argument("flow", metavar="FLOW", nargs="?", help="'source->target', quoted (default: every flow)")
    add_deployment(stopped)
    stopped.set_defaults(run=run_stopped)

    resume = commands.add_parser(
        "resume",
        help="let a stopped lane try again from where it stopped",
        epilog="Example: mirrorless lanes resume 'us-east->eu-west' orders 3 --execute",
    )
    quarantine = commands.add_parser(
        "quarantine",
        help="leave out exactly the record that the target refused, and go on",
        epilog="Example: mirrorless lanes quarantine 'us-east->eu-west' orders 3 1234 --execute",
    )
    reset = commands.add_parser(
        "reset",
        help="close a lane's chain and go on from another upstream offset, as after a topic was re-created",
        epilog="Example: mirrorless lanes reset 'us-east->eu-west' orders 3 --to earliest "
        "--reason 'orders was re-created, ticket 4711' --execute",
    )
    for parser, run in ((resume, run_resume), (quarantine, run_quarantine), (reset, run_reset)):
        add_lane(parser)
        if parser is quarantine:
            parser.add_argument("offset", metavar="OFFSET", type=offset, help="upstream offset of the refused record")
        if parser is reset:
            parser.add_argument(
                "--to", required=True, metavar="OFFSET", type=_destination, help="upstream offset, earliest or latest"
            )
            parser.add_argument("--reason", required=True, metavar="TEXT", help="kept in the chain and the ledger")
        add_order(parser)
        add_deployment(parser)
        parser.set_defaults(run=run)


def run_stopped(arguments: argparse.Namespace) -> int:
    """List stopped lanes. Exit code 1 where there is one."""
    deployment = Deployment.of(arguments)
    found: dict[Lane, Stop] = {}
    for flow in deployment.flow_names(arguments.flow):
        found |= stops_of(deployment.stores(flow), flow)
    if arguments.json:
        print(json.dumps({"stopped": [stop_as_json(lane, stop) for lane, stop in found.items()]}, indent=2))
    elif not found:
        print("No lane is stopped.")
    else:
        for lane, stop in found.items():
            print(f"{lane.at(stop.upstream_offset)}: {stop.reason} since {moment(stop.at)}")
            print(f"  why         {stop.detail}")
            print(f"  what to do  {advice(stop)}")
    return 1 if found else 0


def stops_of(stores: Stores, flow: FlowName) -> Mapping[Lane, Stop]:
    """Every stop of a flow, by lane, in order."""
    states = sorted(stores.states.stopped(flow).items(), key=lambda each: each[0])
    return {lane: state.stop for lane, state in states if state.stop is not None}


def stop_as_json(lane: Lane, stop: Stop) -> dict[str, Any]:
    """A stop for programs; `at` in ms since the epoch."""
    return _lane_as_json(lane) | {
        "reason": stop.reason,
        "upstream_offset": stop.upstream_offset,
        "detail": stop.detail,
        "at": stop.at,
        "what_to_do": advice(stop),
    }


def run_resume(arguments: argparse.Namespace) -> int:
    """Drop the stop, so that the next delivery tries again."""
    _, stores, lane, state = _lane_of(arguments)
    if state.stop is None:
        return _tell(arguments, lane, ["The lane is not stopped: nothing to do."], changes=False)
    plan = [
        f"It is stopped at upstream offset {state.stop.upstream_offset} ({state.stop.reason}): {state.stop.detail}",
        "Drop the stop: the next delivery tries again from there, and stops again if nothing has changed.",
    ]
    if arguments.execute:
        stores.states.resume(lane)
    return _tell(arguments, lane, plan, changes=True)


def run_quarantine(arguments: argparse.Namespace) -> int:
    """Order to leave out one record, and drop the stop."""
    _, stores, lane, state = _lane_of(arguments)
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
    return _tell(arguments, lane, plan, changes=True)


def run_reset(arguments: argparse.Namespace) -> int:
    """Close the chain with a link, and let a new generation begin at `--to`."""
    deployment, stores, lane, state = _lane_of(arguments)
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
    return _tell(arguments, lane, told, changes=True, more=more)


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


def _destination(text: str) -> str | int:
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


def _lane_of(arguments: argparse.Namespace) -> tuple[Deployment, Stores, Lane, LaneState]:
    deployment = Deployment.of(arguments)
    lane = deployment.lane(arguments.flow, arguments.topic, arguments.partition)
    stores = deployment.stores(lane.flow)
    return deployment, stores, lane, stores.states.read([lane]).get(lane, RUNNING)


def _tell(
    arguments: argparse.Namespace,
    lane: Lane,
    plan: list[str],
    *,
    changes: bool,
    more: Mapping[str, Any] | None = None,
) -> int:
    executed = changes and arguments.execute
    if arguments.json:
        print(json.dumps(_lane_as_json(lane) | dict(more or {}) | {"plan": plan, "executed": executed}, indent=2))
        return 0
    print(f"{lane}:")
    for step in plan:
        print(f"  - {step}")
    if changes:
        print("Done." if executed else "Nothing was changed: this was the plan. Add --execute to carry it out.")
    return 0


def _lane_as_json(lane: Lane) -> dict[str, Any]:
    return {"flow": str(lane.flow), "topic": lane.topic, "partition": lane.partition}
