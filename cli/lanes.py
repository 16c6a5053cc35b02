"""`mirrorless lanes stopped | resume | quarantine | reset | hold | release`: which lanes wait, and how do they go on?

Whatever changes state shows its plan first, and only `--execute` carries it out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from cli.args import add_deployment, add_lane, add_lanes, add_order, offset
from cli.deployment import DeployedFlows, Stores
from cli.errors import BadInput
from cli.format import moment
from cli.lanes_held import run_hold, run_release, run_resume
from cli.lanes_order import lane_as_json, lane_of, tell
from cli.lanes_reset import destination, run_reset
from mirrorless.lane import FlowName, Lane
from mirrorless.lane_state import Stop
from mirrorless.lanes.operator_actions import NotAllowed, advice, check_quarantine


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `lanes` with its six."""
    lanes = subparsers.add_parser(
        "lanes", help="list stopped lanes, bring them back, hold them, end a dead job's lease"
    )
    commands = lanes.add_subparsers(required=True, metavar="COMMAND")

    stopped = commands.add_parser(
        "stopped",
        help="list the lanes that wait for you, why, and what to do",
        epilog="Example: mirrorless lanes stopped 'us-east->eu-west'",
    )
    stopped.add_argument("flow", metavar="FLOW", nargs="?", help="'source->target', quoted (default: every flow)")
    add_deployment(stopped)
    stopped.set_defaults(run=run_stopped)

    _add_orders_for_many(commands)

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
    for parser, run in ((quarantine, run_quarantine), (reset, run_reset)):
        add_lane(parser)
        if parser is quarantine:
            parser.add_argument("offset", metavar="OFFSET", type=offset, help="upstream offset of the refused record")
        if parser is reset:
            parser.add_argument(
                "--to", required=True, metavar="OFFSET", type=destination, help="upstream offset, earliest or latest"
            )
            parser.add_argument("--reason", required=True, metavar="TEXT", help="kept in the chain and the ledger")
        add_order(parser)
        add_deployment(parser)
        parser.set_defaults(run=run)


def _add_orders_for_many(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    hold = commands.add_parser(
        "hold",
        help="stop lanes where they stand, as before a reconciliation: nothing more is written until they are resumed",
        epilog="Example: mirrorless lanes hold 'us-east->eu-west' --reason 'failover, ticket 4711' --execute",
    )
    resume = commands.add_parser(
        "resume",
        help="let a stopped lane try again from where it stopped; without PARTITION, lanes that are held",
        epilog="Example: mirrorless lanes resume 'us-east->eu-west' orders 3 --execute",
    )
    release = commands.add_parser(
        "release",
        help="end the lease of a job that is dead, so that its lanes need not wait for the lease's term",
        epilog="Example: mirrorless lanes release 'us-east->eu-west' orders --execute",
    )
    for parser, run in ((hold, run_hold), (resume, run_resume), (release, run_release)):
        add_lanes(parser)
        if parser is hold:
            parser.add_argument("--reason", metavar="TEXT", default="held by hand", help="shown wherever the stop is")
        add_order(parser)
        add_deployment(parser)
        parser.set_defaults(run=run)


def run_stopped(arguments: argparse.Namespace) -> int:
    """List stopped lanes. Exit code 1 where there is one."""
    deployment = DeployedFlows.of(arguments)
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
    return lane_as_json(lane) | {
        "reason": stop.reason,
        "upstream_offset": stop.upstream_offset,
        "detail": stop.detail,
        "at": stop.at,
        "what_to_do": advice(stop),
    }


def run_quarantine(arguments: argparse.Namespace) -> int:
    """Order to leave out one record, and drop the stop."""
    _, stores, lane, state = lane_of(arguments)
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
    return tell(arguments, lane, plan, changes=True)
