"""`mirrorless backfill | verify | reconcile`: the kinds of jobs, each with its own options.

A backfill copies a topic's history to the target, through the flow's own chain. A verification is the proof that every
record of the offset map is on the target, unchanged. A reconciliation is the way back after an outage, with the records
that one of the clusters does not have.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TypeVar, get_args

from cli.jobs.commands import add_bounds, add_kind
from mirrorless.jobs.request import BackfillOptions, Conflicts, Policy, ReconcileOptions, VerifyOptions

Kind = TypeVar("Kind", BackfillOptions, VerifyOptions, ReconcileOptions)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of all kinds."""
    add_kind(
        subparsers,
        "backfill",
        summary="copy topics' history to the target, and hand over to the live flow",
        example="'us-east->eu-west' orders --from 2026-11-01T00:00:00Z --max-mb-per-second 50",
        more=_backfill,
        options=partial(options_of, BackfillOptions),
    )
    add_kind(
        subparsers,
        "verify",
        summary="prove what was replicated, record by record, by the offset map's digests",
        example="'us-east->eu-west' orders --against-source",
        more=_verify,
        options=partial(options_of, VerifyOptions),
    )
    add_kind(
        subparsers,
        "reconcile",
        summary="bring back what is new on the target after an outage, and make the flow ready to run again",
        example="'us-east->eu-west' --policy quarantine --policy payments=replay",
        more=_reconcile,
        options=reconcile_options,
    )


def options_of(kind: type[Kind], arguments: argparse.Namespace) -> Kind:
    """The options of a kind of job: those of its fields that were given."""
    given = {name: getattr(arguments, name, None) for name in kind.__struct_fields__}
    return kind(**{name: value for name, value in given.items() if value is not None})


def reconcile_options(arguments: argparse.Namespace) -> ReconcileOptions:
    """The options of a reconciliation: policies by topic, and one for all others, which has no topic."""
    given = arguments.policy_of or ()
    arguments.policy = next((policy for topic, policy in reversed(given) if not topic), None)
    arguments.policies = {topic: policy for topic, policy in given if topic}
    return options_of(ReconcileOptions, arguments)


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


def _verify(parser: argparse.ArgumentParser) -> None:
    add_bounds(parser)
    parser.add_argument("--against-source", action="store_true", help="read the source's records as well, and compare")


def add_policies(parser: argparse.ArgumentParser) -> None:
    """Add `--policy` and `--conflicts`."""
    parser.add_argument(
        "--policy",
        dest="policy_of",
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
