"""Servers as child processes: started, watched, killed, restarted at the same address, and never left behind.

Kafka, DynamoDB Local and the function environments are all such children. What they are started with, and when they are
ready, is their own modules' business.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

from lab.waiting import wait_for
from mirrorless.errors import MirrorlessError

LAUNCHER = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG = 1
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the lab died before its child began")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""
"""Has Linux kill us with our parent, then becomes the real program under the same pid.

A program of its own rather than a `preexec_fn`: Python code between fork and exec can deadlock where there are threads.
"""

NURSERY = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nursery")
"""The one thread that forks: "parent death" means the death of the forking *thread*, so it lives as long as we do."""

TAKEN: set[int] = set()
"""Ports already promised in this process, though perhaps nobody listens on them yet."""


class ChildProcess:
    """One child process with one log file.

    It leads a session of its own, so that Ctrl-C in the terminal reaches us first and we decide who stops when; it dies
    with us even if we are killed with SIGKILL (Linux). All methods may be called from any thread.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    def start(
        cls, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> ChildProcess:
        """Start `argv`; its output is appended to `log`, so that a restart keeps the reason for the death before it.

        Args:
            argv: program (looked up on PATH) and arguments. If it is not there, the child ends and its log says so.
            log: file for stdout and stderr; its folder is created.
            env: the whole environment; ours when None.
            cwd: working directory; ours when None.
        """
        log.parent.mkdir(parents=True, exist_ok=True)

        def fork() -> subprocess.Popen[bytes]:
            with log.open("ab") as output:
                return subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                )

        return cls(NURSERY.submit(fork).result(), log)

    @property
    def pid(self) -> int:
        """The process id; it stays the number of the dead after a death."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs. A death is noticed here, and the dead process is reaped."""
        if self._process.poll() is not None:
            return False
        try:
            # While another thread is reaping it, `poll` answers as if it ran.
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to whatever it started; nothing happens when it is dead already."""
        if self.alive:
            # It leads its session, so the group's id is its pid; not reaped yet, that number is nobody else's.
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return  # it died since; wait() will tell

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone: no flush, no goodbye, as when a host disappears."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def stop(self, timeout: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after `timeout` seconds; returns when it is gone."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a frozen process hears SIGTERM only when it runs again
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code.

        Raises:
            TimeoutError: it still runs after `timeout` seconds.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired as exc:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s; its log is {self.log}") from exc


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log, for the error that reports its writer's death; at most 64 KiB are looked at."""
    if not log.exists():
        return f"({log} was never written)"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 65536))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A free TCP port on loopback that stays ours over restarts of its server.

    Not one that the kernel would choose: those are also the ports of outgoing connections. While a killed broker is
    down, a client that calls its port may be given that very port to call from; it is then connected to itself, and
    keeps the broker from coming back.

    Raises:
        OSError: 1,000 ports were tried and none is free.
    """
    draw = random.SystemRandom()
    for _ in range(1000):
        port = draw.randrange(15000, min(first_ephemeral_port(), 32768))
        if reserve(port):
            return port
    raise OSError("no free TCP port on 127.0.0.1 between 15000 and 32767: stop what holds them and start again")


def reserve(port: int) -> bool:
    """Take a TCP port on loopback, as `free_port` does; False where it is promised already, or somebody else's.

    Other processes cannot take it while this one lives, whether or not a server listens there: labs run side by side,
    and a port that is free only until a broker has started, or while one is killed, is not.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    if port in TAKEN:
        return False
    try:
        fcntl.lockf(_port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # which of them, POSIX leaves to the system
        return False
    TAKEN.add(port)
    return True


@cache
def _port_locks() -> int:
    """The file, open for good, of which each process locks the byte at the number of each port that it has taken.

    The kernel drops the locks with the process, however that ends.
    """
    return os.open(Path(tempfile.gettempdir(), f"mirrorless-lab-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600)


def first_ephemeral_port() -> int:
    """Where the kernel's own range begins; 49152 (RFC 6335) where the system does not say as Linux does."""
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return int(setting.read_text().split()[0]) if setting.exists() else 49152


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

    @property
    def exit_code(self) -> int | None:
        """Of its last process: see `ChildProcess.exit_code`; None where it was never started."""
        return self._process.exit_code if self._process else None

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
        ask = self._probe()

        def obstacle() -> str:
            if not self.alive:
                raise self._failed("it died before it was ready")
            return ask()

        if reason := wait_for(obstacle, seconds=timeout, every=0.05):
            raise self._failed(f"it is not ready after {timeout:.0f} s: {reason}")

    def kill(self) -> None:
        """SIGKILL, as when the host is lost. What it acknowledged is in the page cache and survives."""
        if self._process:
            self._process.kill()

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM, then SIGKILL after `timeout` seconds. Data and address stay for another start."""
        if self._process:
            self._process.stop(timeout)

    def _failed(self, what: str) -> ServerFailed:
        return ServerFailed(
            f"{what}; the end of its log:\n{tail(self.log)}\n", where=self.title, hint=f"read {self.log}"
        )


class Runnable(Protocol):
    """A server, or a cluster of several."""

    def begin_start(self) -> None: ...  # noqa: D102 -- see `Server`
    def wait_ready(self) -> None: ...  # noqa: D102 -- same
    def stop(self) -> None: ...  # noqa: D102 -- same


@contextmanager
def running(*servers: Runnable) -> Iterator[None]:
    """Servers that are started side by side, and stopped at the end.

    Raises:
        ServerFailed: one does not become ready.
        MissingTool: Java or Maven is not there.
    """
    try:
        for server in servers:
            server.begin_start()
        for server in servers:
            server.wait_ready()
        yield
    finally:
        for server in servers:
            server.stop()
