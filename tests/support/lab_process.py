"""The lab as an outsider's process: driven by its state file, its addresses and signals.

with LabProcess(folder, CONFIGURATION) as lab:
    lab.await_ready()
    lab.state["clusters"]["us-east"]["bootstrap"]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import psutil

from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
LOOK_EVERY_SECONDS = 0.01
ENDED_WITHIN_SECONDS = 180.0
"""Some 3 s on an idle machine."""


class LabProcess:
    """`python -m lab up` with a configuration of its own. Leaving the context kills what is left of it."""

    def __init__(self, folder: Path, configuration: str, *options: str) -> None:
        config, self.state_file, self.log = folder / "replication.yaml", folder / "state.json", folder / "up.log"
        config.write_text(configuration)
        command = [sys.executable, "-m", "lab", "up", "--config", str(config), "--state", str(self.state_file)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options], cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._torn: list[str] = []
        self._reads = 0
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, name="state reader")

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._reader.join()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(ENDED_WITHIN_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def state(self) -> dict[str, Any]:
        """What the state file says now."""
        whole = json.loads(self.state_file.read_text())
        assert isinstance(whole, dict)
        return whole

    def await_ready(self, *, seconds: float = 300.0, pid: int | None = None) -> None:
        """Wait until records flow. Args: pid: of the lab, where the file of one that was killed is there too."""

        def ready() -> bool:
            assert self.process.poll() is None, f"the lab ended:\n{self.log.read_text()[-3000:]}"
            return self.state_file.exists() and self.state["ready"] and pid in {None, self.state["pid"]}

        eventually(ready, f"ready; see {self.log}", seconds=seconds)

    def assert_always_whole(self) -> None:
        """Every look at the state file so far, a hundred a second, found valid JSON."""
        assert self._reads > 0
        assert not self._torn

    def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end, and make sure that no process is left; answers the exit code."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        assert family
        self.process.send_signal(number)
        code = self.process.wait(ENDED_WITHIN_SECONDS)
        eventually(lambda: not any(map(runs, family)), f"of {family} none is left")
        return code

    def _read(self) -> None:
        while not self._over.wait(LOOK_EVERY_SECONDS):
            try:
                text = self.state_file.read_text()
            except FileNotFoundError:
                continue  # not written yet; once it is there, it stays
            self._reads += 1
            try:
                json.loads(text)
            except ValueError as exc:
                self._torn.append(f"{exc}: {text!r}")


def runs(process: psutil.Process) -> bool:
    """Whether it is this process that runs; a zombie that is not reaped yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    """As an outsider does it."""
    os.kill(pid, signal.SIGKILL)
