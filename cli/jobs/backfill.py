"""`mirrorless backfill`: the copy of a topic's history to the target, through the flow's own chain."""

from __future__ import annotations

import argparse

from cli.jobs.commands import add_bounds, add_kind
from mirrorless.jobs.request import BackfillOptions, Bound


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `backfill`."""
    add_kind(
        subparsers,
        "backfill",
        summary="copy topics' history to the target, and hand over to the live flow",
        example="'us-east->eu-west' orders --from 2026-11-01T00:00:00Z --max-mb-per-second 50",
        more=_more,
        options=options,
    )


def options(arguments: argparse.Namespace) -> BackfillOptions:
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


def _more(parser: argparse.ArgumentParser) -> None:
    add_bounds(parser)
    parser.add_argument("--archive", metavar="URI", help="read a folder of Parquet files instead of the source")
    parser.add_argument("--into", metavar="TOPIC", help="write to this topic of the target, beside the live one")
    parser.add_argument("--max-mb-per-second", metavar="MB", type=float, help="cap, all lanes together")
    parser.add_argument("--free-gb", metavar="GB", type=float, help="what the target's disks have left, to be checked")
    parser.add_argument(
        "--beside", action="store_true", help="write behind records on the target that the flow has not written"
    )
    parser.add_argument("--force", action="store_true", help="start although a check warns")
