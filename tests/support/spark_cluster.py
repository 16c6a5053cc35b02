"""Jobs as EMR Serverless runs them, on this machine: spark-submit, executors of their own, and processes to be killed.

A driver's JVM has the job's Python as a child; an executor's JVM has its workers, by way of a daemon that forks them.
All are found by their parents, so that no test ever touches another one's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from lab.drills.failover import JAVA_OPTIONS
from spark.jobs.context import _LOCAL

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
EXECUTOR, DAEMON = "CoarseGrainedExecutorBackend", "pyspark.daemon"


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job under way: its driver's JVM, and everything that came of it."""

    driver: subprocess.Popen[bytes]
    log: Path
    orphans: list[int]
    """Pids of what was left when the driver was killed: it notices that later, and works on until then."""

    def executors(self) -> list[int]:
        """Pids of the executors' JVMs."""
        return [pid for pid in children(self.driver.pid) if EXECUTOR in command(pid)]

    def workers(self) -> list[int]:
        """Pids of the Python processes that do tasks: the daemons' children."""
        daemons = [pid for executor in self.executors() for pid in children(executor) if DAEMON in command(pid)]
        return [pid for daemon in daemons for pid in children(daemon)]

    def kill_driver(self) -> None:
        """Kill -9 of the driver: its JVM and its Python at once, as a lost container takes them."""
        self.orphans.extend(descendants(self.driver.pid))
        own = [pid for pid in children(self.driver.pid) if EXECUTOR not in command(pid)]
        for pid in (self.driver.pid, *own):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.driver.wait(30)

    def log_text(self) -> str:
        """The log of driver and Spark so far."""
        return self.log.read_text(errors="replace")


@contextmanager
def submitted(
    script: Path, run: Path, *, folder: Path, confs: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[RunningJob]:
    """Submit a job to `local-cluster`: one executor at a time, two tasks, in processes of their own.

    Args:
        script: the job's.
        run: the folder of the run, its one argument.
        folder: where the driver works; what executors leave goes below it.
        confs: of the submission.
        environment: the whole environment of the driver.
    """
    folder.mkdir(exist_ok=True)
    local = {name: value for name, value in _LOCAL.items() if not name.startswith("spark.sql.shuffle")}
    every = local | {"spark.task.maxFailures": "8", "spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    home = _home(folder / "home")
    argv = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,2,1024]"]
    for name, value in {**every, **confs}.items():
        argv += ["--conf", f"{name}={value}"]
    log = folder / f"{time.time_ns()}.log"
    places = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HOME": str(folder),
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
    }
    with log.open("wb") as out:
        driver = subprocess.Popen(
            [*argv, str(script), str(run)], cwd=folder, env={**environment, **places}, stdout=out, stderr=out
        )
    job = RunningJob(driver, log, [])
    try:
        yield job
    finally:
        if driver.poll() is None:
            job.kill_driver()
        for pid in job.orphans:
            if str(folder) in command(pid) or DAEMON in command(pid):  # still the same process
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _home(folder: Path) -> Path:
    """Spark's home as links: executors of a `local-cluster` always work in its `work`."""
    folder.mkdir(exist_ok=True)
    for path in SPARK_HOME.iterdir():
        link = folder / path.name
        if path.name != "work" and not link.is_symlink():
            link.symlink_to(path)
    return folder


def plain_environment(**more: str) -> dict[str, str]:
    """For jobs that run from this checkout: this Python, with what it has installed."""
    return {
        "PATH": os.environ["PATH"],
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
        **more,
    }


def children(pid: int) -> list[int]:
    """Pids of a process's children."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, _, rest = stat.read_text().rpartition(") ")
            if int(rest.split()[1]) == pid:
                found.append(int(stat.parent.name))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """Pids of a process's children, and of theirs."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def command(pid: int) -> str:
    """The command line of a process; empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0] != "Z"
    except OSError:
        return False
