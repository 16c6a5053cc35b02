"""`mirrorless backfill | verify | reconcile`: the kinds of jobs, each with its own options.

A backfill copies a topic's history to the target, through the flow's own chain. A verification is the proof that every
record of the offset map is on the target, unchanged. A reconciliation is the way back after an outage, with the records
that one of the clusters does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

import msgspec

from cli.jobs.commands import add_bounds, add_kind
from mirrorless.jobs.request import BackfillOptions, Bound, Conflicts, Policy, ReconcileOptions, VerifyOptions


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of all kinds."""
    add_kind(
        subparsers,
        "backfill",
        summary="copy topics' history to the target, and hand over to the live flow",
        example="'us-east->eu-west' orders --from 2026-11-01T00:00:00Z --max-mb-per-second 50",
        more=_backfill,
        options=backfill_options,
    )
    add_kind(
        subparsers,
        "verify",
        summary="prove what was replicated, record by record, by the offset map's digests",
        example="'us-east->eu-west' orders --against-source",
        more=_verify,
        options=verify_options,
    )
    add_kind(
        subparsers,
        "reconcile",
        summary="bring back what is new on the target after an outage, and make the flow ready to run again",
        example="'us-east->eu-west' --policy quarantine --policy payments=replay",
        more=_reconcile,
        options=options_of_reconcile,
    )


def backfill_options(arguments: argparse.Namespace) -> BackfillOptions:
    """The options of a backfill."""
    return BackfillOptions(
        start=arguments.start or Bound("earliest"),
        end=arguments.end or Bound("latest"),
        archive=arguments.archive,
        into=arguments.into,
        max_mb_per_second=arguments.max_mb_per_second,
        free_gb=arguments.free_gb,
        force=arguments.force,
        beside=arguments.beside,
    )


def _backfill(parser: argparse.ArgumentParser) -> None:
    add_bounds(parser)
    parser.add_argument("--archive", metavar="URI", help="read a folder of Parquet files instead of the source")
    parser.add_argument("--into", metavar="TOPIC", help="write to this topic of the target, beside the live one")
    parser.add_argument("--max-mb-per-second", metavar="MB", type=float, help="cap, all lanes together")
    parser.add_argument("--free-gb", metavar="GB", type=float, help="what the target's disks have left, to be checked")
    parser.add_argument(
        "--beside", action="store_true", help="write behind records on the target that the flow has not written"
    )
    parser.add_argument("--force", action="store_true", help="start although a check warns")


def verify_options(arguments: argparse.Namespace) -> VerifyOptions:
    """The options of a verification."""
    return VerifyOptions(
        start=arguments.start or Bound("earliest"),
        end=arguments.end or Bound("latest"),
        against_source=arguments.against_source,
    )


def _verify(parser: argparse.ArgumentParser) -> None:
    add_bounds(parser)
    parser.add_argument("--against-source", action="store_true", help="read the source's records as well, and compare")


def options_of_reconcile(arguments: argparse.Namespace) -> ReconcileOptions:
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


def _reconcile(parser: argparse.ArgumentParser) -> None:
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
