"""A server as a child process: started, watched, killed, and never left behind.

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
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
