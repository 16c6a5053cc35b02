"""A Spark job as an operator starts it: its own script in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.servers.process import ChildProcess, tail
from mirrorless.errors import MirrorlessError
from mirrorless.jobs.progress import JobProgress
from mirrorless.jobs.request import PAGE, PROGRESS, REPORT, REQUEST, JobRequest, encode_request
from mirrorless.naming import SPARK_MASTER_VARIABLE

REPOSITORY = Path(__file__).parents[2]
LOOK_EVERY_SECONDS = 0.2
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""As for the brokers: a job of the lab is over before the second compiler pays off. It takes half of the CPU so."""


class JobFailed(MirrorlessError):
    """A job left no report. The end of its log is in the text."""


class JobProcess:
    """One run of a job, with a Spark of two cores."""

    def __init__(self, request: JobRequest, *, folder: Path, variables: Mapping[str, str]) -> None:
        """Args: folder: of the run, made here. variables: where the stores are, and whose they are."""
        self.folder = folder.absolute()
        self._request = request
        self._variables = variables

    @property
    def page(self) -> Path:
        """The report for people."""
        return self.folder / PAGE

    def run(self, on_phase: Callable[[str], None], *, seconds: float) -> dict[str, Any]:
        """Run it to its end.

        Args:
            on_phase: called with each new phase.
            seconds: how long it may take.

        Returns:
            the report for machines.

        Raises:
            JobFailed: it failed, or took too long, and is ended.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / REQUEST).write_bytes(encode_request(self._request))
        log = self.folder / "driver.log"
        process = ChildProcess.start(self._command(), log, env=self._environment(), cwd=REPOSITORY)
        try:
            phase, deadline = "", time.monotonic() + seconds
            while process.alive:
                if (now := self._phase()) != phase:
                    phase = now
                    on_phase(phase)
                if time.monotonic() > deadline:
                    raise JobFailed(f"it is not done after {seconds:.0f} s:\n{tail(log)}\n", where=self._request.run_id)
                time.sleep(LOOK_EVERY_SECONDS)  # between two looks at a condition with a deadline
        finally:
            process.stop()
        report = self.folder / REPORT
        if not report.exists():
            raise JobFailed(f"it left no report; the end of its log:\n{tail(log)}\n", where=self._request.run_id)
        found: dict[str, Any] = json.loads(report.read_text())
        return found

    def _phase(self) -> str:
        path = self.folder / PROGRESS
        return msgspec.json.decode(path.read_bytes(), type=JobProgress).phase if path.exists() else ""

    def _command(self) -> list[str]:
        return [sys.executable, str(REPOSITORY / "spark" / f"{self._request.kind}.py"), str(self.folder)]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            SPARK_MASTER_VARIABLE: "local[2,4]",
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "shared"), str(REPOSITORY))),
            **self._variables,
        }
