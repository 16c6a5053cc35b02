"""`mirrorless groups FLOW [--group G] [--reverse]`: which consumer group can move to the other side, and from where?"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from cli.args import add_deployment
from cli.deployment import DeployedFlows
from cli.groups_look import look_at
from cli.groups_view import GroupsView, need_operator
from mirrorless.groups.checkpoints import Direction


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `groups`."""
    parser = subparsers.add_parser(
        "groups",
        help="say which consumer groups can go on on the other side, and what they would read again",
        description="List the flow's consumer groups with their readiness; with --group, one group by partition.",
        epilog="Example: mirrorless groups 'us-east->eu-west' --group shop",
    )
    parser.add_argument("flow", metavar="FLOW", help="'source->target', quoted")
    parser.add_argument("--group", metavar="GROUP", help="one group, by topic and partition")
    parser.add_argument("--reverse", action="store_true", help="the way back: groups that read on the target")
    add_deployment(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Answer from the checkpoint table. Exit code 1 where a group has no place to go on: it stands before the map."""
    deployment = DeployedFlows.of(arguments)
    flow = deployment.flow_name(arguments.flow)
    direction: Direction = "reverse" if arguments.reverse else "forward"
    answer = look_at(deployment, flow, direction, group=arguments.group)
    if arguments.json:
        print(json.dumps(as_json(answer), indent=2))
    else:
        from cli.groups_table import show  # noqa: PLC0415 -- programs need no tables

        show(answer, one=arguments.group is not None, now=time.time_ns() // 1_000_000)
    return int(any(need_operator(answer.groups)))


def as_json(answer: GroupsView) -> dict[str, Any]:
    """The answer for programs; `committed_there` is told only where one group was asked for."""
    committed = {place.lane: place.committed for place in answer.places}
    return {
        "flow": str(answer.flow),
        "direction": answer.direction,
        "groups": [
            {
                "group": group.group,
                "readiness": group.readiness,
                "by": group.by,
                "reread": group.reread,
                "ahead": group.ahead,
                "at": group.at,
                "offsets": [
                    {
                        "topic": lane.topic,
                        "partition": lane.partition,
                        "upstream": offset.upstream,
                        "downstream": offset.downstream,
                        "state": offset.state,
                        "metadata": offset.metadata,
                    }
                    | ({"committed_there": committed[lane]} if lane in committed else {})
                    for lane, offset in sorted(group.lanes(answer.flow), key=lambda each: each[0])
                ],
            }
            for group in answer.groups
        ],
        "excluded": list(answer.excluded),
        "trouble": answer.trouble,
    }
