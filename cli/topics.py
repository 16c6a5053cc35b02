"""`mirrorless topics FLOW`: which topics does the flow take, how do both sides have them, and which does it refuse?"""

from __future__ import annotations

import argparse
import json
from typing import Any

from cli.args import add_deployment
from cli.deployment import DeployedFlows
from cli.topics_look import look_at
from cli.topics_view import TopicsView


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `topics`."""
    parser = subparsers.add_parser(
        "topics",
        help="list the flow's topics on both sides: partitions, mappings, config drift, and what is refused",
        epilog="Example: mirrorless topics 'us-east->eu-west'",
    )
    parser.add_argument("flow", metavar="FLOW", help="'source->target', quoted")
    add_deployment(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look at both clusters and at what the refresh knows. Exit code 1 where a topic waits for the operator."""
    answer = look_at(DeployedFlows.of(arguments), arguments.flow)
    if arguments.json:
        print(json.dumps(as_json(answer), indent=2))
    else:
        from cli.topics_table import show  # noqa: PLC0415 -- programs need no tables

        show(answer)
    return int(answer.needs_operator)


def as_json(answer: TopicsView) -> dict[str, Any]:
    """The answer for programs; null for what is not known."""
    return {
        "flow": answer.flow,
        "needs_operator": answer.needs_operator,
        "topics": [
            {
                "topic": row.topic,
                "remote_topic": row.remote_topic,
                "source_partitions": row.source_partitions,
                "target_partitions": row.target_partitions,
                "mapping_made_by": row.owner,
                "mapping_state": row.mapping,
                "config_drift": None if row.drift is None else list(row.drift),
                "topic_id": row.topic_id or None,
                "found_late": row.late,
                "trouble": row.trouble,
            }
            for row in answer.topics
        ],
        "refused": {cause: list(names) for cause, names in answer.refused.items()},
        "troubles": list(answer.troubles),
    }
