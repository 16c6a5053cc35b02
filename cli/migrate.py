"""`mirrorless migrate …`: coming from MirrorMaker 2."""

from __future__ import annotations

import argparse

from cli.take_over import add_commands


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands below `migrate`."""
    migrate = subparsers.add_parser("migrate", help="come from MirrorMaker 2")
    add_commands(migrate.add_subparsers(required=True, metavar="COMMAND"))
