"""Runs of jobs on this machine: each is a process with Spark in it, which outlives the command.

A run's folder is on disk. Its process is identified by its command line, because the system reuses process ids.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from cli.args import BadInput
from cli.jobs.runs import RunView, read_ending, read_progress, read_request
from mirrorless.adapters.aws.job_files import LocalJobFiles
from mirrorless.errors import ConfigurationError
from mirrorless.jobs.progress import JobProgress, JobState
from mirrorless.jobs.request import REQUEST, JobKind, JobRequest, encode_request
from mirrorless.lane import FlowName
from mirrorless.naming import CLIENT_LOG_VARIABLE, SPARK_MASTER_VARIABLE

SCRIPTS = Path(__file__).resolve().parents[2] / "spark"

FOLDER = ".lab/jobs"
"""The folder of runs, below the current folder."""

LOG = "driver.log"
PROCESS = "process.json"

ATTEMPTS = 4
"""Attempts of each Spark task: a lane resumes at its position."""


_STARTED: dict[str, subprocess.Popen[bytes]] = {}
"""Child processes of this one, by run. They are polled first: the system may not have the command line yet of a process
that has just begun."""


class _Process(msgspec.Struct, frozen=True):
    pid: int


class LocalRuns:
    """Implements `Runs` on this machine."""

    def __init__(self, folder: Path, *, variables: Mapping[str, str]) -> None:
        """Args: folder: of all runs. variables: a job's environment variables, beside the command's own."""
        self._folder = folder.absolute()
        self._variables = variables

    def start(self, request: JobRequest, *, size: int | None) -> RunView:
        """See `Runs.start`."""
        script = SCRIPTS / f"{request.kind}.py"
        if not script.exists():
            raise ConfigurationError(
                "the jobs' scripts are not here", where=str(script), hint="use --local from a checkout of the project"
            )
        files = self._files(request.run_id)
        files.write(REQUEST, encode_request(request))
        with (Path(files.place) / LOG).open("ab") as log:
            process = self._process(script, files.place, log, size)
        _STARTED[request.run_id] = process
        files.write(PROCESS, msgspec.json.encode(_Process(process.pid)))
        return self.inspect(request.run_id)

    def inspect(self, run_id: str) -> RunView:
        """See `Runs.inspect`."""
        files = self._files(run_id)
        request = read_request(files)
        if request is None:
            raise BadInput(
                "there is no such run",
                where=files.place,
                hint="`list` has the runs of this folder; those of another one are found by --folder",
            )
        alive = self._pid(run_id) is not None  # first, so that the files of a run that ends meanwhile are complete
        progress = read_progress(files)
        state, error = _state(progress, alive=alive, log=f"{files.place}/{LOG}")
        clean, verdict = read_ending(files) if state == "succeeded" else (None, "")
        return RunView(
            run_id=run_id,
            kind=request.kind,
            flow=request.flow.flow,
            state=state,
            place=files.place,
            progress=progress,
            error=error,
            clean=clean,
            verdict=verdict,
            more={"log": f"{files.place}/{LOG}"},
        )

    def cancel(self, run_id: str) -> RunView:
        """See `Runs.cancel`."""
        view = self.inspect(run_id)
        pid = self._pid(run_id)
        if pid is not None and not view.over:
            os.kill(pid, signal.SIGTERM)
        return view

    def every(self, kind: JobKind, flows: Sequence[FlowName]) -> list[RunView]:
        """See `Runs.every`."""
        wanted = {str(flow) for flow in flows}
        names = sorted((path.parent.name for path in self._folder.glob(f"{kind}-*/{REQUEST}")), reverse=True)
        return [view for view in map(self.inspect, names) if view.flow in wanted]

    def _files(self, run_id: str) -> LocalJobFiles:
        return LocalJobFiles(self._folder / run_id)

    def _process(self, script: Path, place: str, log: IO[bytes], size: int | None) -> subprocess.Popen[bytes]:
        cores = size or os.cpu_count() or 1
        return subprocess.Popen(
            [sys.executable, str(script), place],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends the command, not the run
            env={
                **os.environ,
                CLIENT_LOG_VARIABLE: "5",
                SPARK_MASTER_VARIABLE: f"local[{cores},{ATTEMPTS}]",
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                **self._variables,
            },
        )

    def _pid(self, run_id: str) -> int | None:
        """The pid of the run's driver; None where it has ended."""
        if (started := _STARTED.get(run_id)) is not None:
            return started.pid if started.poll() is None else None
        files = self._files(run_id)
        known = files.read(PROCESS)
        if known is None:
            return None
        pid = msgspec.json.decode(known, type=_Process).pid
        return pid if files.place in _command_line(pid) else None


def _state(progress: JobProgress | None, *, alive: bool, log: str) -> tuple[JobState, str]:
    """The state of a run, and why it did not succeed."""
    if progress is not None and progress.state in {"succeeded", "failed", "cancelled"}:
        return progress.state, progress.error
    if alive:
        return ("starting" if progress is None else progress.state), ""
    return "failed", f"its driver ended without a result: see {log}"


def _command_line(pid: int) -> str:
    """The command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return ""
    except OSError:
        return ""
    found = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout
