"""`mirrorless verify`: the proof that every record of the offset map is on the target, unchanged."""

from __future__ import annotations

import argparse

from cli.jobs.commands import add_bounds, add_kind
from mirrorless.jobs.request import Bound, VerifyOptions


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `verify`."""
    add_kind(
        subparsers,
        "verify",
        summary="prove what was replicated, record by record, by the offset map's digests",
        example="'us-east->eu-west' orders --against-source",
        more=_more,
        options=options,
    )


def options(arguments: argparse.Namespace) -> VerifyOptions:
    """The options of a verification."""
    return VerifyOptions(
        start=arguments.start or Bound("earliest"),
        end=arguments.end or Bound("latest"),
        against_source=arguments.against_source,
    )


def _more(parser: argparse.ArgumentParser) -> None:
    add_bounds(parser)
    parser.add_argument("--against-source", action="store_true", help="read the source's records as well, and compare")
