"""`mirrorless migrate …`: coming from MirrorMaker 2."""

from __future__ import annotations

import argparse

from cli import give_back, migrate_config, take_over


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands below `migrate`."""
    migrate = subparsers.add_parser("migrate", help="come from MirrorMaker 2, and go back to it")
    commands = migrate.add_subparsers(required=True, metavar="COMMAND")
    for add in (migrate_config.add_command, take_over.add_commands, give_back.add_command):
        add(commands)
