"""`mirrorless status [FLOW]`: where does every lane stand, how far behind is it, and does it need the operator?

Beside the lanes: when the last heartbeats came through, which consumer groups are ready to move, and how the scheduled
tasks go.
"""

from __future__ import annotations

import argparse
import json

from cli.args import add_deployment
from cli.deployment import DeployedFlows
from cli.status_look import look_at


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `status`."""
    parser = subparsers.add_parser(
        "status",
        help="say where every flow stands: lag, latency, stopped lanes, losses, heartbeats, groups, tasks",
        epilog="Example: mirrorless status 'us-east->eu-west' --lanes",
    )
    parser.add_argument("flow", metavar="FLOW", nargs="?", help="'source->target', quoted (default: every flow)")
    parser.add_argument("--lanes", action="store_true", help="one line per partition, not only per topic")
    add_deployment(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look at everything. Exit code 1 where something needs the operator, see `FlowStatus.needs_operator`."""
    deployment = DeployedFlows.of(arguments)
    flows = [look_at(deployment, flow) for flow in deployment.flow_names(arguments.flow)]
    if arguments.json:
        from cli.status_json import as_json  # noqa: PLC0415 -- people need no JSON

        print(json.dumps({"flows": [as_json(flow) for flow in flows]}, indent=2))
    else:
        from cli.status_table import show  # noqa: PLC0415 -- programs need no tables

        show(flows, by_lane=arguments.lanes)
    return int(any(flow.needs_operator for flow in flows))
