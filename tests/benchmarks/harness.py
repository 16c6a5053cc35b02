"""Runs scenarios: each in a process of its own, all of whose processes are sampled, and keeps what they took."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

from tests.benchmarks.ground import REPOSITORY

SAMPLE_SECONDS = 0.5

Group = Literal["scale", "parts", "page"]


class Outcome(NamedTuple):
    """What a scenario returns."""

    figures: Mapping[str, Any]
    wrong: Sequence[str] = ()
    """What is beyond a limit, missing or otherwise not as it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A row of the table."""

    run: str
    """`module:function` in this package; its keyword arguments are the scenario's options."""
    group: Group
    """Run by `make scale`, by `make bench-parts`, or by its name alone: a page quotes its figures."""
    about: str
    """What it sets up, and what it measures."""
    beside: str = ""
    """What it is compared with."""
    limit: str = ""
    options: str = ""
    """Of its own run, where they are not the function's defaults."""
    small: str = ""
    """Of its smallest run."""

    def function(self) -> Callable[..., Outcome]:
        """What runs."""
        module, _, name = self.run.partition(":")
        found: Callable[..., Outcome] = getattr(importlib.import_module(f"tests.benchmarks.{module}"), name)
        return found

    def given(self, options: Sequence[str]) -> dict[str, Any]:
        """The function's arguments: the scenario's own options, and `name=value` in addition.

        Raises:
            ValueError: the scenario has no such option.
        """
        defaults = {name: each.default for name, each in inspect.signature(self.function()).parameters.items()}
        found = {}
        for name, _, text in (each.partition("=") for each in [*self.options.split(), *options]):
            if name not in defaults:
                raise ValueError(f"no option {name}: it has {', '.join(defaults) or 'none'}")
            found[name] = _like(defaults[name], text)
        return found


def _like(default: Any, text: str) -> Any:
    if isinstance(default, bool):
        return text == "true"
    if isinstance(default, tuple):
        return tuple(type(default[0])(each) if default else each for each in text.split(",") if each)
    return type(default)(text)


def run_inside(scenario: Scenario, options: Sequence[str], figures: Path | None) -> int:
    """Run a scenario in this process; the exit code."""
    outcome = scenario.function()(**scenario.given(options))
    print(json.dumps(outcome.figures), flush=True)
    if figures is not None:
        figures.write_text(json.dumps(outcome.figures))
    for each in outcome.wrong:
        print(each, file=sys.stderr, flush=True)
    return int(bool(outcome.wrong))


def run_all(scenarios: Mapping[str, Scenario], options: Sequence[str], report: Path | None, *, resume: bool) -> int:
    """Run scenarios one after the other; 1 where one failed, which keeps its last good entry in the report.

    Args:
        scenarios: by name.
        options: for each of them, `name=value`.
        report: where figures are kept, by name of the scenario.
        resume: leave out what this commit has run.
    """
    kept: dict[str, Any] = json.loads(report.read_text()) if report is not None and report.exists() else {}
    commit, failed = _commit(), []
    for name, scenario in scenarios.items():
        if resume and kept.get(name, {}).get("commit") == commit:
            print(f"{name}: has run on {commit}", flush=True)
            continue
        words = ["tests.benchmarks", name, *scenario.options.split(), *options]
        print(f"{name}: {scenario.about}", flush=True)
        code, took = _one(name, options)
        print(f"{name}: exit code {code}, {json.dumps(took)}", flush=True)
        if code:
            failed.append(name)
        elif report is not None:
            kept[name] = {"command": " ".join(words), "commit": commit, **took}
            report.write_text(json.dumps(dict(sorted(kept.items())), indent=2) + "\n")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _one(name: str, options: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Exit code and figures of a scenario; its own take the place of those of the same names."""
    with tempfile.TemporaryDirectory(prefix="figures-") as folder:
        figures = Path(folder, "figures.json")
        code, took = measured(
            [sys.executable, "-m", "tests.benchmarks", name, *options, "--inside", "--figures", str(figures)]
        )
        return code, took | (json.loads(figures.read_text()) if figures.exists() else {})


def measured(command: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Run a command, and sample its processes.

    Returns:
        its exit code; `seconds`, `cpu_seconds` and `resident_mb`, of all its processes together.
    """
    began, cpu, resident = time.monotonic(), dict[tuple[int, float], float](), 0
    process = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    root = psutil.Process(process.pid)
    while True:
        resident = max(resident, _sample(root, cpu))
        try:
            code = process.wait(SAMPLE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return code, {
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(sum(cpu.values()), 1),
            "resident_mb": resident >> 20,
        }


def _sample(root: psutil.Process, cpu: dict[tuple[int, float], float]) -> int:
    """Note the CPU seconds of each process; the bytes resident now. Pages that processes share count in each."""
    resident = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0  # it ended
    for each in processes:
        try:
            with each.oneshot():
                times = each.cpu_times()
                cpu[each.pid, each.create_time()] = times.user + times.system
                resident += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # its last sample stands
    return resident


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
