"""The base of the lab's servers: start, readiness, kill, and restart at the same address.

How one is started and what "ready" means to its clients is said by its own module.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from lab.servers.process import ChildProcess, tail
from mirrorless.errors import MirrorlessError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

READY_WITHIN_S = 240.0
"""A cold start takes some 3 s on two idle cores; the rest is for machines that are busy or slow."""


class ServerFailed(MirrorlessError):
    """A lab server died or did not become ready. The end of its log is in the text."""


class Server(ABC):
    """One server of the lab, with a folder of its own for data, settings and log.

    Attributes:
        log: the log file; restarts append to it.
        title: what it is and where, for people.
    """

    def __init__(self, *, title: str, folder: Path, log: str) -> None:
        self.log = folder.absolute() / log
        self.title = title
        self._folder = folder.absolute()
        self._process: ChildProcess | None = None
        self._starting = threading.Lock()

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """The argument list that starts it; written settings are part of this step."""

    @abstractmethod
    def _probe(self) -> Callable[[], str]:
        """A question that may be asked again and again: why could a client not work with it yet? Empty: it could."""

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it is not running."""
        process = self._process
        return process.pid if process and process.alive else None

    @property
    def alive(self) -> bool:
        """Whether the process runs; it may not be ready yet."""
        return self.pid is not None

    def start(self) -> None:
        """Start, and return when clients can work with it. Does nothing to one that runs and is ready.

        Raises:
            ServerFailed: it died, or is not ready in time.
            MissingTool: Java or Maven is not there.
        """
        self.begin_start()
        self.wait_ready()

    def begin_start(self) -> None:
        """Start without waiting, so that several servers start side by side. Does nothing while it runs."""
        # A supervisor may see it dead while another thread starts it: two brokers would then write to one folder.
        with self._starting:
            if not self.alive:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._process = ChildProcess.start(self._command(), self.log, cwd=self._folder)

    def wait_ready(self, timeout: float = READY_WITHIN_S) -> None:
        """Wait until clients can work with it.

        Raises:
            ServerFailed: it died, or is not ready after `timeout` seconds. It is left as it is, for a look.
        """
        deadline = time.monotonic() + timeout
        obstacle = self._probe()
        while True:
            if not self.alive:
                raise self._failed("it died before it was ready")
            reason = obstacle()
            if not reason:
                return
            if time.monotonic() > deadline:
                raise self._failed(f"it is not ready after {timeout:.0f} s: {reason}")
            time.sleep(0.05)  # between two looks at a condition with a deadline

    def kill(self) -> None:
        """SIGKILL, as when the host is lost. What it acknowledged is in the page cache and survives."""
        if self._process:
            self._process.kill()

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM, then SIGKILL after `timeout` seconds. Data and address stay for another start."""
        if self._process:
            self._process.stop(timeout)

    def restart(self) -> None:
        """Start again at the same address with the same data, whatever state it is in."""
        self.stop()
        self.start()

    def _failed(self, what: str) -> ServerFailed:
        return ServerFailed(
            f"{what}; the end of its log:\n{tail(self.log)}\n", where=self.title, hint=f"read {self.log}"
        )
