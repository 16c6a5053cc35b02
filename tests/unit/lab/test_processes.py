"""Children end on request, and with their parent: a broker left behind would hold its port and memory for days."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lab.functions.environment import own_bytes
from lab.servers.process import ChildProcess, Server, first_ephemeral_port, free_port, reserve, tail
from lab.waiting import RepeatedLook, wait_for
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]
POLITE = "import time; print('up', flush=True); time.sleep(60)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], ChildProcess]]:
    """Start a Python program that says `up` when it is."""
    children: list[ChildProcess] = []

    def run(program: str) -> ChildProcess:
        child = ChildProcess.start([sys.executable, "-c", program], tmp_path / f"{len(children)}.log")
        children.append(child)
        eventually(lambda: "up" in child.log.read_text())
        return child

    yield run
    for child in children:
        child.kill()


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie that is not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_that_another_thread_is_just_reaping_is_dead(start: Callable[[str], ChildProcess]) -> None:
    """An environment that died was given an event in that moment."""
    child = start(POLITE)

    with child._process._waitpid_lock:  # type: ignore[attr-defined]  # as the reaping thread holds it
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: not runs(child.pid))
        assert not child.alive

    assert not child.alive


def test_a_killed_child_is_gone_when_kill_returns(start: Callable[[str], ChildProcess]) -> None:
    child = start(POLITE)
    assert child.alive

    child.kill()

    assert not child.alive
    assert child.exit_code == -signal.SIGKILL
    assert not runs(child.pid)
    child.kill()  # twice is no error


@pytest.mark.parametrize(
    ("on_sigterm", "seconds", "exit_code"),
    [
        pytest.param("signal.SIG_IGN", 0.2, -signal.SIGKILL, id="it ignores SIGTERM"),
        pytest.param("lambda *_: sys.exit(7)", 10, 7, id="it says goodbye"),
    ],
)
def test_a_frozen_child_ends_by_itself_or_by_force(
    start: Callable[[str], ChildProcess], on_sigterm: str, seconds: float, exit_code: int
) -> None:
    """Without a SIGCONT its handler could not run, and every frozen environment would cost its whole timeout."""
    child = start(f"import signal, sys; signal.signal(signal.SIGTERM, {on_sigterm}); {POLITE}")
    child.signal(signal.SIGSTOP)

    child.stop(timeout=seconds)

    assert child.exit_code == exit_code


def test_ctrl_c_in_the_terminal_does_not_reach_a_child(start: Callable[[str], ChildProcess]) -> None:
    """The terminal signals its foreground group: a child in it would die before we had stopped what depends on it."""
    child = start(POLITE)

    assert os.getsid(child.pid) == child.pid
    assert os.getpgid(child.pid) == child.pid


def test_kill_takes_what_the_child_started_along(start: Callable[[str], ChildProcess]) -> None:
    child = start("import subprocess; p = subprocess.Popen(['sleep', '60']); print('up', p.pid, flush=True); p.wait()")
    grandchild = int(child.log.read_text().split()[1])

    child.kill()

    eventually(lambda: not runs(grandchild))


@pytest.mark.skipif(sys.platform != "linux", reason="death with the parent is Linux's")
def test_a_child_dies_with_us_even_by_sigkill_and_not_before(tmp_path: Path) -> None:
    """Linux signals when the forking thread ends: started from a passing thread, a broker would vanish."""
    program = f"""
import threading, time
from pathlib import Path
from lab.servers.process import ChildProcess

children, threads = [], []

def passing():
    threads.append(threading.get_native_id())
    child = ChildProcess.start(["sleep", "60"], Path({str(tmp_path / "log")!r}))
    children.append(child)
    while Path(f"/proc/{{child.pid}}/comm").read_text().strip() != "sleep":
        time.sleep(0.01)

threading.Thread(target=passing).start()
while not threads or Path(f"/proc/self/task/{{threads[0]}}").exists():
    time.sleep(0.01)
print(children[0].pid, flush=True)
time.sleep(60)
"""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ | path
    ) as lab:
        assert lab.stdout is not None
        try:
            pid = int(lab.stdout.readline())
            assert runs(pid)
        finally:
            lab.kill()

    eventually(lambda: not runs(pid))


def test_a_program_that_is_not_there_is_named_in_the_log(tmp_path: Path) -> None:
    child = ChildProcess.start(["no-such-program"], tmp_path / "log")

    assert child.wait(20) != 0
    assert "no-such-program: No such file or directory" in tail(child.log)


def test_waiting_too_long_names_the_process_and_its_log(start: Callable[[str], ChildProcess]) -> None:
    child = start(POLITE)

    with pytest.raises(TimeoutError, match=rf"process {child.pid} still runs after 0.01 s; its log is .*0\.log"):
        child.wait(0.01)


def test_a_restart_keeps_the_log_of_the_life_before(tmp_path: Path) -> None:
    for word in ("first", "second"):
        assert ChildProcess.start(["echo", word], tmp_path / "log").wait(20) == 0

    assert tail(tmp_path / "log") == "first\nsecond"
    assert tail(tmp_path / "log", lines=1) == "second"


def test_ports_are_reserved_once_and_never_out_of_the_kernels_own_range() -> None:
    """A client that calls a dead broker on such a port can be given the port itself, and then holds it."""
    ports = [free_port() for _ in range(200)]

    assert len(set(ports)) == 200
    assert max(ports) < first_ephemeral_port()


def elsewhere(program: str) -> str:
    """What another process prints."""
    asked = [sys.executable, "-c", f"from lab.servers.process import *; print({program})"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout.strip()


def test_a_port_belongs_to_the_process_that_took_it_until_it_ends() -> None:
    assert elsewhere(f"reserve({free_port()})") == "False", "though nothing listens there"
    assert reserve(int(elsewhere("free_port()")))


def test_the_memory_of_a_child_that_ended_while_it_was_read_is_nothing(start: Callable[[str], ChildProcess]) -> None:
    child = start(POLITE)
    with Path(f"/proc/{child.pid}/statm").open() as statm:
        assert own_bytes(statm) > 0
        statm.seek(0)
        child.kill()
        assert own_bytes(statm) == 0


class SlowToStart(Server):
    """A server whose command takes until `go` to be made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(title="slow", folder=folder, log="slow.log")
        self.go, self.begun = threading.Event(), threading.Semaphore(0)

    def _command(self) -> Sequence[str]:
        self.begun.release()
        self.go.wait(60)
        return [sys.executable, "-c", "import sys; sys.stdin.read()"]

    def _probe(self) -> Callable[[], str]:
        return str


def test_a_server_that_a_supervisor_and_another_thread_start_at_once_is_one_process(tmp_path: Path) -> None:
    server = SlowToStart(tmp_path)
    starts = [threading.Thread(target=server.begin_start) for _ in range(2)]
    try:
        for start in starts:
            start.start()
        assert server.begun.acquire(timeout=60)
        assert not server.begun.acquire(timeout=0.5), "the other thread made a command as well"
        server.go.set()
        for start in starts:
            start.join(60)
        assert server.alive
        assert not server.begun.acquire(blocking=False)
    finally:
        server.go.set()
        server.kill()


def test_what_is_still_in_the_way_at_the_end_or_when_all_is_over_is_returned() -> None:
    obstacles = iter(["the broker", "a leader", ""])

    assert wait_for(lambda: next(obstacles), seconds=60, every=0) == ""
    assert wait_for(lambda: "the broker", seconds=0) == "the broker"
    over = threading.Event()
    over.set()
    assert wait_for(lambda: "the broker", seconds=60, over=over) == "the broker"


def test_what_a_look_has_raised_is_raised_by_whoever_ends_the_watch() -> None:
    looked = threading.Event()

    def look() -> None:
        looked.set()
        raise ValueError("a finding")

    watch = RepeatedLook(look, every=0.0, name="watch")
    watch.start()
    assert looked.wait(10)

    with pytest.raises(ValueError, match="a finding"):
        watch.finish()
    RepeatedLook(lambda: pytest.fail("it looked"), every=0.0, name="never begun").finish()
