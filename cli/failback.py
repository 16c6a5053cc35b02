"""`mirrorless failback FLOW`: producers and groups return to the source, with everything that the target alone has."""

from __future__ import annotations

import argparse

from cli.failover import add_flows_and_report, run_all
from cli.jobs.reconcile import add_policies, reconcile_options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `failback`."""
    parser = subparsers.add_parser(
        "failback",
        help="bring back to the source what a failover has moved, and close what it opened",
        epilog="Example: mirrorless failback 'us-east->eu-west' --execute",
    )
    add_policies(parser)
    parser.add_argument("--local", action="store_true", help="the job runs on this machine, instead of EMR Serverless")
    parser.add_argument("--folder", metavar="DIR", help="where runs of this machine are kept (default: .lab/jobs)")
    add_flows_and_report(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fail back, or show the plan. Exit code 3 where it is done and something is missing."""
    arguments.reconcile_options = reconcile_options(arguments.policy or [], arguments.conflicts)
    return run_all(arguments, None)
