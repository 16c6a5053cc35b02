"""A server that two threads start at once is started once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.servers.server import Server


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
