"""`mirrorless reconcile`: the way back after an outage, with the records that one of the clusters does not have."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

import msgspec

from cli.jobs.commands import add_kind
from mirrorless.jobs.request import Conflicts, Policy, ReconcileOptions


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `reconcile`."""
    add_kind(
        subparsers,
        "reconcile",
        summary="bring back what is new on the target after an outage, and make the flow ready to run again",
        example="'us-east->eu-west' --policy quarantine --policy payments=replay",
        more=_more,
        options=options,
    )


def options(arguments: argparse.Namespace) -> ReconcileOptions:
    """The options of a reconciliation."""
    given = reconcile_options(arguments.policy or [], arguments.conflicts)
    return msgspec.structs.replace(
        given, look_only=arguments.look_only, live_source=arguments.live_source, conflicts=arguments.conflicts
    )


def reconcile_options(given: Sequence[tuple[str, Policy]], conflicts: Conflicts) -> ReconcileOptions:
    """Options with these policies: by topic, and one for all others, which has no topic."""
    general = [policy for topic, policy in given if not topic]
    return ReconcileOptions(
        policy=general[-1] if general else "report",
        policies={topic: policy for topic, policy in given if topic},
        conflicts=conflicts,
    )


def add_policies(parser: argparse.ArgumentParser) -> None:
    """Add `--policy` and `--conflicts`."""
    parser.add_argument(
        "--policy",
        metavar="[TOPIC=]POLICY",
        type=_policy,
        action="append",
        help="what becomes of records that were never replicated: replay, quarantine or report (default); may be "
        "repeated, for a topic by its name",
    )
    parser.add_argument(
        "--conflicts",
        choices=get_args(Conflicts),
        default="keep-newest",
        help="which records of a compacted topic `replay` writes again: those that are the newest of their key "
        "(default), or all of them",
    )


def _more(parser: argparse.ArgumentParser) -> None:
    add_policies(parser)
    parser.add_argument("--look-only", action="store_true", help="inspect and report, and change nothing")
    parser.add_argument(
        "--live-source",
        action="store_true",
        help="go on although producers write to the source: their records count as orphans",
    )


def _policy(text: str) -> tuple[str, Policy]:
    topic, _, policy = text.rpartition("=")
    if policy not in get_args(Policy):
        raise argparse.ArgumentTypeError(f"{policy!r} is no policy: write one of {', '.join(get_args(Policy))}")
    return topic, policy  # type: ignore[return-value]  # it is one of them
