"""The tutorial, followed: its configuration, its lab, and its commands in order.

python -m tests.support.tutorial     writes what docs/tutorial.md shows of their output anew, in about two minutes
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.lab_process import REPOSITORY, LabProcess

PAGE = REPOSITORY / "docs" / "tutorial.md"

COMMAND = re.compile(
    r"^    (\.venv/bin/mirrorless .*|kill .*)\n(\n```text\n(?P<printed>(?:.*\n)*?)```\n)?", re.MULTILINE
)
"""A command, and what the page shows of its output."""

UNTIL = (
    ("status 'us-east->eu-west' --lanes", r"orders +(\d to )?5 .* 600 +0  0 s .* ok ", 0),
    ("consume us-east.orders --records 3", r"3 records of us-east.orders on eu-west", 0),
    ("translate 'us-east->eu-west' orders 3 700 --reverse", r"is upstream", 0),
    ("translate 'us-east->eu-west' orders 3 700", r"is downstream", 0),
    ("groups ", r"Ready: ", 0),
    ("lab topics --create", "created on us-east", 0),
    ("lab produce orders --records 6000", "6,000 records to orders", 0),
    ("lab produce orders --records 600", "600 records to orders", 0),
    ("lanes reset", "Done: 6 lanes", 0),
    ("backfill start", "at most 0 records", 0),
    ("verify start", r"Nothing is wrong: ([\d,]+) of \1 records are proved", 0),
    ("--fence wait --execute", "Nothing is missing", 0),
    ("lab consume us-east.orders --group shop", "5 records of us-east.orders on eu-west, committed by group shop", 0),
)
"""By a part of a command, what it prints in the end, and its exit code. Others succeed at once."""

STATUS = (r"orders +6 +0 +0 s", r"6 lanes stopped|its partitions 0, 1, 2, 3, 4, 5 stand still", r"orders +6 +0 +0 s")
"""What the statuses of all flows show: after the broker's death, with the new topic, after the reset."""

RECORDS = re.compile(r"((?:\d+ +\d+  20.*\n){3})(?:\d+ +\d+  20.*\n){5,}")
"""Lines of many records, of which the page keeps three."""

PROGRESS = re.compile(
    r".*(?:: starting|waiting for (?:a free core|groups).*|at work for .*|plan: 0 records.*|: \d/9 .*|: stop the .*)\n"
)
"""Lines that the page leaves out."""

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Step:
    """One command of the page, what it has to print, its exit code, and what the page shows of its output."""

    command: str
    shows: str
    code: int
    printed: str


def steps(page: str) -> Iterator[Step]:
    """Every command of the page that follows the start of the lab."""
    statuses = iter(zip(STATUS, (0, 1, 0), strict=True))
    for found in COMMAND.finditer(page):
        command, printed = found[1], found["printed"] or ""
        if command.endswith("mirrorless status"):
            yield Step(command, *next(statuses), printed)
            continue
        shows, code = next(((shows, code) for part, shows, code in UNTIL if part in command), ("", 0))
        yield Step(command, shows, code, printed)


def follow(folder: Path) -> Iterator[tuple[str, str]]:
    """Run each command in a folder as the page has it, and yield it with what it printed.

    Raises:
        AssertionError: a command does not print what it should in time, or ends with another code.
    """
    page = PAGE.read_text()
    configuration = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert configuration is not None
    (folder / ".venv").symlink_to(REPOSITORY / ".venv")
    (folder / ".lab").mkdir()
    with LabProcess(folder / ".lab", configuration[1]) as lab:
        (folder / "replication.yaml").symlink_to(folder / ".lab" / "replication.yaml")
        lab.await_ready()
        for step in steps(page):
            yield step.command, _run(step, folder)


def _run(step: Step, folder: Path) -> str:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        shell = ["bash", "-c", step.command]
        done = subprocess.run(shell, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode == step.code and re.search(step.shows, said):
            return said
        repeatable = re.search(r" (status|groups|translate|lab (?!produce))", step.command)
        assert repeatable, f"{step.command} ended with {done.returncode}:\n{said}"
        assert time.monotonic() < end, f"{step.command} does not show {step.shows}:\n{said}"
        time.sleep(1)  # between two looks at a condition with a deadline


def rewritten(page: str, transcript: list[tuple[str, str]], folder: Path) -> str:
    """The page with these outputs, wherever it shows one."""
    said = iter(transcript)

    def shown(found: re.Match[str]) -> str:
        command, output = next(said)
        if found["printed"] is None:
            return found[0]
        lines = "".join(f"{line.rstrip()}\n" for line in output.replace(str(folder), "…").strip().splitlines())
        short = PROGRESS.sub("", RECORDS.sub("\\1…\n", lines))
        return f"    {command}\n\n```text\n{short}```\n"

    return COMMAND.sub(shown, page)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        PAGE.write_text(rewritten(PAGE.read_text(), list(follow(place)), place))
    print(f"wrote {PAGE.relative_to(REPOSITORY)}")
