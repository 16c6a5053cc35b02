"""Jobs as EMR Serverless runs them, on this machine: spark-submit, executors of their own, and processes to be killed.

A driver's JVM has the job's Python as a child; an executor's JVM has its workers, by way of a daemon that forks them.
All are found by their parents, so that no test ever touches another one's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
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
    orphans: list[psutil.Process]
    """What was left when the driver was killed: it notices that later, and works on until then."""

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        return [each for each in children(self.driver.pid) if EXECUTOR in command(each)]

    def workers(self) -> list[psutil.Process]:
        """The Python processes that do tasks."""
        return workers(self.driver.pid)

    def kill_driver(self) -> None:
        """Kill -9 of the driver: its JVM and its Python at once, as a lost container takes them."""
        self.orphans.extend(children(self.driver.pid, recursive=True))
        own = [each for each in children(self.driver.pid) if EXECUTOR not in command(each)]
        self.driver.kill()
        for each in own:
            with suppress(psutil.NoSuchProcess):
                each.kill()
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
        for each in job.orphans:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _home(folder: Path) -> Path:
    """Spark's home as links: executors of a `local-cluster` always work in its `work`."""
    folder.mkdir(exist_ok=True)
    for path in SPARK_HOME.iterdir():
        link = folder / path.name
        if path.name != "work" and not link.is_symlink():
            link.symlink_to(path)
    return folder


def plain_environment() -> dict[str, str]:
    """For jobs that run from this checkout: this Python, with what it has installed, and this process's AWS."""
    return {
        "PATH": os.environ["PATH"],
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
        **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
    }


def workers(pid: int) -> list[psutil.Process]:
    """The Python workers below a process: children of the daemons that fork them, which have the same command."""
    daemons = {each.pid for each in children(pid, recursive=True) if DAEMON in command(each)}
    return [each for daemon in daemons for each in children(daemon) if each.pid in daemons]


def children(pid: int, *, recursive: bool = False) -> list[psutil.Process]:
    """A process's children, or everything that came of it; none when it is gone."""
    try:
        return psutil.Process(pid).children(recursive)
    except psutil.NoSuchProcess:
        return []


def command(process: psutil.Process) -> str:
    """The command line of a process; empty when it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
