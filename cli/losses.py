"""`mirrorless losses [FLOW] [TOPIC]`: the loss ledger, and the counts of harmless gaps."""

from __future__ import annotations

import argparse

from cli.args import add_deployment, add_flow
from cli.deployment import DeployedFlows
from cli.output import lane_as_json, moment, picked, print_json, say
from mirrorless.chain.losses import GapSummary, Loss
from mirrorless.reports.format import numbered


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `losses`."""
    parser = subparsers.add_parser(
        "losses",
        help="list the loss ledger: upstream offsets the target does not have, and why; and harmless gaps",
        epilog="Example: mirrorless losses 'us-east->eu-west' orders",
    )
    add_flow(parser, optional=True)
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="the topic's name on the source (default: all)")
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """List the ledger. Exit code 0 also where there are losses: their cause was noted with them."""
    from mirrorless.adapters.dynamodb.chains import lanes_in  # noqa: PLC0415 -- boto3 costs half a second

    deployment = DeployedFlows.of(arguments)
    losses: list[Loss] = []
    summaries: list[GapSummary] = []
    for flow in deployment.flow_names(arguments.flow):
        stores = deployment.stores(flow)
        for lane in lanes_in(stores.client, stores.tables.loss_ledger, flow):
            if arguments.topic in {None, lane.topic}:
                losses += stores.ledger.read(lane)
                summaries += stores.ledger.summaries(lane)
    if arguments.json:
        found = [lane_as_json(loss.lane) | picked(loss, "generation first next cause detail at") for loss in losses]
        explained = [lane_as_json(each.lane) | picked(each, "generation until offsets at") for each in summaries]
        print_json({"losses": found, "explained": explained})
        return 0
    if not losses:
        say("The loss ledger is empty: nothing is known to be missing on the target.")
    for loss in losses:
        say(as_line(loss))
    harmless = [summary for summary in summaries if summary.offsets]
    if harmless:
        say("", "Offsets without a record that are harmless:")
    for summary in harmless:
        say(summary_as_line(summary))
    return 0


def as_line(loss: Loss) -> str:
    """A loss for people."""
    reach = str(loss.first) if loss.next == loss.first + 1 else f"{loss.first} to {loss.next - 1}"
    offsets = numbered(loss.next - loss.first, "offset")
    return f"{moment(loss.at)}  {loss.lane} @ {reach} ({offsets}, {loss.cause}): {loss.detail}"


def summary_as_line(summary: GapSummary) -> str:
    """A summary for people."""
    counts = ", ".join(f"{count:,} {cause.replace('_', ' ')}" for cause, count in sorted(summary.offsets.items()))
    return f"{moment(summary.at)}  {summary.lane} below {summary.until} (generation {summary.generation}): {counts}"
