"""Arguments that several commands share, and their error: the deployment, the format, a lane, an offset, an order."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from mirrorless.errors import MirrorlessError


class BadInput(MirrorlessError):
    """The command line names something that does not exist or makes no sense. Nothing was changed.

    The same words will not work later either.
    """


def write_new(name: str, content: bytes, what: str = "the file") -> None:
    """Write a new file.

    Raises:
        BadInput: there is one, or it cannot be written.
    """
    try:
        with Path(name).open("xb") as file:
            file.write(content)
    except OSError as exc:
        hint = "name a new file, or move that one away"
        raise BadInput(f"{what} cannot be written: {exc.strerror}", where=name, hint=hint) from exc


CONFIG = "replication.yaml"
"""The configuration that is meant where none is named."""


def whole(what: str, most: int, *, least: int = 0) -> Callable[[str], int]:
    """A reader of whole numbers. Args: what: they are, for the message: `an offset`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}: write a whole number from {least} to {most}")
        return int(text)

    return read


offset = whole("an offset", 2**63 - 1)
partition = whole("a partition", 2**31 - 1)
count = whole("a count", 10_000, least=1)


def add_deployment(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    """Add `--lab`, `--config` and `--json`. Without the first two, `cli.deployment.choose_lab` decides.

    Args:
        parser: with all other arguments.
        run: the command.
    """
    parser.add_argument(
        "--lab",
        metavar="STATE",
        help="the state file of a lab, instead of AWS (default: MIRRORLESS_LAB, or a lab that runs in this folder)",
    )
    parser.add_argument("--config", metavar="FILE", help=f"the configuration on AWS (default: {CONFIG})")
    parser.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    parser.set_defaults(run=run)


def add_flow(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add FLOW. Args: optional: whether every flow is meant where it is left out."""
    if optional:
        parser.add_argument("flow", metavar="FLOW", nargs="?", help="'source->target', quoted (default: every flow)")
    else:
        parser.add_argument("flow", metavar="FLOW", help="'source->target', quoted")


def add_lane(parser: argparse.ArgumentParser) -> None:
    """Add FLOW, TOPIC and PARTITION."""
    add_flow(parser)
    parser.add_argument("topic", metavar="TOPIC", help="the topic's name on the source")
    parser.add_argument("partition", metavar="PARTITION", type=partition, help="its partition, the same on both sides")


def add_lanes(parser: argparse.ArgumentParser) -> None:
    """Add FLOW, and optionally TOPIC and PARTITION."""
    add_flow(parser)
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="the topic's name on the source (default: every one)")
    parser.add_argument("partition", metavar="PARTITION", nargs="?", type=partition, help="default: every one")


def add_order(parser: argparse.ArgumentParser) -> None:
    """Add `--dry-run` and `--execute`. A command that changes state shows its plan first."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only show the plan; this is the default")
    how.add_argument("--execute", action="store_true", help="carry the plan out")


def add_without_header(parser: argparse.ArgumentParser) -> None:
    """The option of commands that compare what another replicator has copied."""
    parser.add_argument(
        "--without-header",
        metavar="NAME",
        action="append",
        default=[],
        help="compare this header not, which the replicator adds; may be repeated (MSK Replicator's is known)",
    )
