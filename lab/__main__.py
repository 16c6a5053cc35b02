"""`python -m lab`: the local cloud."""

from __future__ import annotations

import argparse
import sys

from lab import up
from lab.drills import demo, failover, soak
from mirrorless.errors import MirrorlessError
from mirrorless.reports.format import visible_lines

INTERRUPTED = 130
"""What a shell reports for a command that Ctrl-C ended."""


def main(argv: list[str] | None = None) -> int:
    """Run one of the lab's commands."""
    parser = argparse.ArgumentParser(prog="python -m lab", description="Run Mirrorless on this machine, and break it.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (up, demo, failover, soak):
        command.add_parser(subparsers)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except MirrorlessError as exc:
        print(visible_lines(str(exc)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; everything is stopped", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
