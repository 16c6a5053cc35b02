"""Scenarios too large for `make test`: what each takes, and whether it keeps its limit.

python -m tests.benchmarks                               the table
python -m tests.benchmarks verify records=20000          one of them, with other numbers
python -m tests.benchmarks --group scale [--resume]      what `make scale` runs, kept in a report
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from tests.benchmarks.harness import Group, run_all, run_inside
from tests.benchmarks.table import SCENARIOS


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help="of a scenario")
    parser.add_argument("options", nargs="*", metavar="name=value", help="of it")
    parser.add_argument("--group", choices=get_args(Group), help="all of a group")
    parser.add_argument("--small", action="store_true", help="in its smallest form: shows that it works")
    parser.add_argument("--report", type=Path, help="keep what each took there")
    parser.add_argument("--resume", action="store_true", help="leave out what this commit has run")
    parser.add_argument("--inside", action="store_true", help="run it in this process")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="with --inside: its figures as JSON")
    given = parser.parse_args(arguments)
    chosen = {name: each for name, each in SCENARIOS.items() if given.name == name or given.group == each.group}
    if not chosen:
        if given.name:
            parser.error(f"no scenario {given.name}; there are {', '.join(SCENARIOS)}")
        for name, each in SCENARIOS.items():
            compared = [f"beside {each.beside}"] * bool(each.beside) + [f"limit: {each.limit}"] * bool(each.limit)
            print(f"{name:<20} {each.group:<6} {'; '.join((each.about, *compared))}")
        return 0
    options = [*given.options, *(chosen[given.name].small.split() if given.small and given.name else ())]
    if given.inside:
        return run_inside(chosen[given.name], options, given.figures)
    return run_all(chosen, options, given.report, resume=given.resume)


if __name__ == "__main__":
    sys.exit(main())
