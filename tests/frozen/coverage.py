"""Branch coverage by package, held to the floors of coverage.toml: `python -m tests.frozen.coverage REPORT.json`.

A package is a folder at the top, so that files may move within it. The report is coverage.py's, of a run with
`--branch`: `coverage json -o REPORT.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

REPOSITORY = Path(__file__).parents[2]
FLOORS = Path(__file__).parent / "coverage.toml"
PACKAGES = ("mirrorless", "cli", "lab", "infra", "functions", "spark")
SLACK = 0.5
"""Points below a floor that are let pass: a race is taken in one run and not in another."""


def package_of(file: str) -> str | None:
    """The package of a measured file; None for files of none, such as tests."""
    path = PurePosixPath(file)
    if path.is_relative_to(REPOSITORY.as_posix()):
        path = path.relative_to(REPOSITORY.as_posix())
    top = next(part for part in (*path.parts, "") if part != "shared")
    return top if top in PACKAGES else None


def measured(report: Mapping[str, Any]) -> dict[str, float]:
    """Percent of the branches that were taken, by package.

    Raises:
        ValueError: the report is of a run without branches.
    """
    if not report["meta"]["branch_coverage"]:
        raise ValueError("the report has no branches: run coverage with --branch")
    covered: Counter[str] = Counter()
    branches: Counter[str] = Counter()
    for file, measured in report["files"].items():
        package = package_of(file)
        if package is not None:
            covered[package] += measured["summary"]["covered_branches"]
            branches[package] += measured["summary"]["num_branches"]
    return {package: 100 * covered[package] / branches[package] for package in PACKAGES if branches[package]}


def complaints(now: Mapping[str, float], floors: Mapping[str, float]) -> Iterator[str]:
    """What is wrong, a sentence for each package."""
    for package in PACKAGES:
        if package not in floors:
            yield f"{package} has no floor in {FLOORS.name}: --write makes what is measured the floors"
        elif package not in now:
            yield f"{package} was not measured: the report has no branch of its files"
        elif now[package] < floors[package] - SLACK:
            yield f"{package}: {now[package]:.1f} % of its branches were taken, the floor is {floors[package]:.1f} %"


def main(argv: Sequence[str] | None = None) -> int:
    """Print every package's coverage; 1 where one is below its floor."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.frozen.coverage", description="Hold branch coverage to its floors."
    )
    parser.add_argument("report", type=Path, metavar="REPORT.json", help="of `coverage json`, from a run with --branch")
    parser.add_argument("--write", action="store_true", help="make what is measured the floors")
    given = parser.parse_args(argv)
    now = measured(json.loads(given.report.read_text(encoding="utf-8")))
    for package, percent in now.items():
        print(f"{package:<12}{percent:6.1f} %")
    if given.write:
        head = FLOORS.read_text(encoding="utf-8").partition("[floors]")[0]
        rows = "".join(f"{package} = {percent:.1f}\n" for package, percent in now.items())
        FLOORS.write_text(f"{head}[floors]\n{rows}", encoding="utf-8")
        return 0
    wrong = list(complaints(now, tomllib.loads(FLOORS.read_text(encoding="utf-8"))["floors"]))
    for each in wrong:
        print(each, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
