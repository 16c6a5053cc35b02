"""The parts of the integration tests: they name files that exist, and each file has one part."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.integration_parts import PARTS, place

FOLDER = Path(__file__).parents[1] / "integration"
FILES = [path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("test_*.py")]


def test_every_beginning_in_the_plan_has_a_file() -> None:
    """A renamed file would fall to the last part, unnoticed."""
    deciding = {place(path) for path in FILES}
    named = {(part, position) for part, paths in enumerate(PARTS) for position, _ in enumerate(paths)}

    assert named == deciding


def test_the_longest_beginning_decides() -> None:
    assert place("test_lab_failover.py") == (0, 0)
    assert place("test_lane_check.py") == (len(PARTS) - 2, 0)
    assert place("test_of_something_new.py") == (len(PARTS) - 1, len(PARTS[-1]) - 1)


def test_make_runs_every_part() -> None:
    makefile = (FOLDER.parents[1] / "Makefile").read_text()

    started = re.search(r"addprefix integration-,([\d ]+)\)", makefile)

    assert started is not None
    assert sorted(map(int, started[1].split())) == list(range(len(PARTS)))
