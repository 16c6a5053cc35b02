"""Runs scenarios: each in a process of its own, all of whose processes are sampled, and keeps what they took."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

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
    beside: str = ""
    """What it is compared with."""
    limit: str = ""
    options: str = ""
    """Of its own run, where they are not the function's defaults."""
    small: str = ""
    """Of its smallest run."""

    @property
    def about(self) -> str:
        """What it sets up, and what it measures: the first sentence of its function."""
        words, _, _ = (inspect.getdoc(self.function()) or "").partition("\n\n")
        return words.partition(" Args:")[0].removesuffix(".")

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
    began, environment = time.monotonic(), {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment)
    with Meter(lambda: family(process.pid)) as meter:
        code = process.wait()
    return code, {
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(meter.cpu_seconds, 1),
        "resident_mb": round(meter.resident_mb),
    }


class Meter:
    """CPU and memory of processes, sampled as long as its context lasts. What ended keeps its last sample."""

    def __init__(
        self,
        processes: Callable[[], Iterable[psutil.Process]],
        *,
        every: float = SAMPLE_SECONDS,
        forked: bool = False,
    ) -> None:
        """Args: processes: those of now. every: seconds. forked: count pages once that processes share."""
        self._processes, self._every, self._forked = processes, every, forked
        self._cpu: dict[tuple[int, float], float] = {}
        self.resident_mb = 0.0
        """The most that they had together."""
        self._over, self._thread = threading.Event(), threading.Thread(target=self._watch, daemon=True)

    @property
    def cpu_seconds(self) -> float:
        """Of all of them."""
        return sum(self._cpu.values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            resident = 0
            for each in self._processes():
                with suppress(psutil.Error), each.oneshot():  # it may have ended
                    self._cpu[each.pid, each.create_time()] = own_cpu(each)
                    resident += each.memory_full_info().pss if self._forked else each.memory_info().rss
            self.resident_mb = max(self.resident_mb, resident / 2**20)


def family(pid: int | None, *, recursive: bool = True) -> list[psutil.Process]:
    """A process, and everything that came of it and lives, or its children alone."""
    try:
        root = psutil.Process(pid) if pid is not None else None
        return [root, *root.children(recursive)] if root is not None else []
    except psutil.NoSuchProcess:
        return []


def own_cpu(process: psutil.Process, *, reaped: bool = False) -> float:
    """CPU-seconds of a process, all its threads; 0 when it is gone. Args: reaped: those of children it waited for."""
    try:
        took = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return took.children_user + took.children_system if reaped else took.user + took.system


def family_cpu(pid: int | None) -> float:
    """CPU-seconds of a process and of everything that came of it, as far as that lives or was waited for."""
    return sum(own_cpu(each, reaped=reaped) for each in family(pid) for reaped in (False, True))


def resident_mb(processes: Iterable[psutil.Process]) -> float:
    """Memory of processes now; pages that they share count in each."""
    found = 0
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            found += each.memory_info().rss
    return found / 2**20


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
