"""The operator's command in a process of its own, as it is typed, against a lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mirrorless.errors import MirrorlessError
from mirrorless.naming import SPARK_MASTER_VARIABLE

REPOSITORY = Path(__file__).parents[2]
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""As for the brokers: a job of the lab is over before the second compiler pays off. It takes half of the CPU so."""

DONE = frozenset({0, 3})
"""Exit codes of a command that has done what it was ordered: 3 where something is to be looked at."""


class CommandFailed(MirrorlessError):
    """A command did not do what it was ordered. What it printed is in the text."""


def operate(words: Sequence[str], *, state: Path, say: Callable[[str], None], folder: Path) -> dict[str, Any]:
    """Run `mirrorless WORDS --json`, and pass its progress on.

    Args:
        words: without the deployment and the format.
        state: the lab's state file.
        say: called with each line of progress.
        folder: where jobs of this machine are kept; the command's working folder.

    Returns:
        the answer.

    Raises:
        CommandFailed: it was refused, or is unfinished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        SPARK_MASTER_VARIABLE: "local[2,4]",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "shared"), str(REPOSITORY))),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", *words, "--lab", str(state), "--json"],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None  # noqa: S101 -- asked for above
        assert process.stderr is not None  # noqa: S101 -- same
        lines = []
        for line in process.stderr:  # all of the answer fits into a pipe, and comes at the end
            lines.append(line)
            say(line.rstrip())
        answer = process.stdout.read()
    if process.returncode not in DONE:
        raise CommandFailed(f"`mirrorless {' '.join(words)}` ended with {process.returncode}: {answer}{''.join(lines)}")
    found: dict[str, Any] = json.loads(answer)
    return found
