"""Runs of jobs on this machine: each is a process with Spark in it, which outlives the command.

A run's folder is on disk. Its process is identified by its command line, because the system reuses process ids.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import msgspec

from cli.args import BadInput
from cli.jobs.runs import OVER, RunView, read_progress, read_request, view_of
from mirrorless.adapters.aws.job_files import LocalJobFiles
from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError
from mirrorless.flow.naming import CLIENT_LOG_VARIABLE, SPARK_MASTER_VARIABLE
from mirrorless.jobs.progress import JobProgress, JobState
from mirrorless.jobs.request import REQUEST, JobKind, JobRequest, encode_request

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = CHECKOUT / "spark"

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
    cancelled: bool = False
    """Whether it was ordered to end."""


def bring_spark() -> None:
    """Bring Spark into the checkout's own environment, which `make lab` has made without it.

    Raises:
        ConfigurationError: there is no Spark, and this is another environment, or it could not be brought.
    """
    if find_spec("pyspark") is not None:
        return
    if Path(sys.prefix).resolve() != CHECKOUT / ".venv":
        raise ConfigurationError(
            "Spark is not installed here, and jobs need it", where=sys.prefix, hint="install mirrorless[spark]"
        )
    made = subprocess.run(["make", "--no-print-directory", "spark"], cwd=CHECKOUT, stdout=sys.stderr, check=False)
    if made.returncode:
        raise ConfigurationError("Spark could not be brought", where=sys.prefix, hint="try `make spark` again")
    importlib.invalidate_caches()


class LocalRuns:
    """Implements `Runs` on this machine."""

    def __init__(self, folder: Path, *, variables: Mapping[str, str]) -> None:
        """Args: folder: of all runs. variables: a job's environment variables, beside the command's own."""
        self._folder = folder.absolute()
        self._variables = variables

    def start(self, request: JobRequest, *, size: int | None) -> RunView:
        """See `Runs.start`. Brings Spark first, where there is none."""
        bring_spark()
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
        cancelled = (process := self._process_of(run_id)) is not None and process.cancelled
        log = f"{files.place}/{LOG}"
        found = _state(progress, alive=alive, cancelled=cancelled, log=log)
        return view_of((run_id, request.kind, request.flow.flow), files, progress, found, {"log": log})

    def cancel(self, run_id: str) -> RunView:
        """See `Runs.cancel`."""
        view = self.inspect(run_id)
        pid = self._pid(run_id)
        if pid is None or view.over:
            return view
        self._files(run_id).write(PROCESS, msgspec.json.encode(_Process(pid, cancelled=True)))
        os.kill(pid, signal.SIGTERM)
        return self.inspect(run_id)

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
        process = self._process_of(run_id)
        if process is None:
            return None
        return process.pid if self._files(run_id).place in _command_line(process.pid) else None

    def _process_of(self, run_id: str) -> _Process | None:
        known = self._files(run_id).read(PROCESS)
        return None if known is None else msgspec.json.decode(known, type=_Process)


def _state(progress: JobProgress | None, *, alive: bool, cancelled: bool, log: str) -> tuple[JobState, str]:
    """The state of a run, and why it did not succeed."""
    if progress is not None and progress.state in OVER:
        return progress.state, progress.error
    if cancelled:  # before it could listen to that, it just ended
        return ("cancelling", "") if alive else ("cancelled", "ended by the operator")
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
