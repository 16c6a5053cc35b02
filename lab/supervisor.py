"""A supervisor thread that restarts killed servers, as AWS and a managed cluster would."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from lab.functions.function import FunctionError, LambdaFunction
from lab.servers.process import Server
from lab.waiting import RepeatedLook, wait_for

LOOK_EVERY_SECONDS = 0.1
PAUSE_AFTER_FAILURE_SECONDS = 2.0


class Supervisor:
    """Restarts servers, and keeps one environment of each function initialised."""

    def __init__(
        self,
        *,
        servers: Sequence[Server],
        functions: Mapping[str, LambdaFunction],
        say: Callable[[str], None],
    ) -> None:
        self.restarts = 0
        """Servers brought back so far."""
        self._servers = servers
        self._functions = functions
        self._say = say
        self._held = Counter[Server]()
        self._deciding = threading.Lock()
        self._watch = RepeatedLook(self._look, every=LOOK_EVERY_SECONDS, name="supervisor")

    def start(self) -> None:
        """Begin to watch; the servers run."""
        self._watch.start()

    def stop(self) -> None:
        """RepeatedLook no more, so that servers can be stopped for good."""
        self._watch.stop()
        if self._watch.error is not None:
            self._say(f"servers were not watched any more: {self._watch.error!r}")

    def hold(self, *servers: Server) -> None:
        """Leave these servers dead when they die: an outage that lasts until each `hold` has had its `release`."""
        with self._deciding:
            self._held.update(servers)

    def release(self, *servers: Server) -> None:
        """End one `hold`; a dead server is brought back."""
        with self._deciding:
            self._held.subtract(servers)

    def await_alive(self, server: Server, *, seconds: float = 60.0) -> None:
        """Wait until a dead server is started again.

        Raises:
            TimeoutError: it is not.
        """
        if wait_for(lambda: not server.alive, seconds=seconds):
            raise TimeoutError(f"{server.title} is not started again within {seconds:g} s")

    def _look(self) -> None:
        for server in self._servers:
            with self._deciding:
                if not server.alive and not self._held[server]:
                    self._say(f"{server.title} died; starting it again")
                    self.restarts += 1
                    server.begin_start()
        for name, function in list(self._functions.items()):
            if not function.environments:
                self._initialise(name, function)

    def _initialise(self, name: str, function: LambdaFunction) -> None:
        self._say(f"{name} has no environment left; starting one")
        try:
            function.initialise()
        except FunctionError as exc:
            # The next event tries as well; its mapping reports what is wrong.
            self._say(str(exc))
            self._watch.over.wait(PAUSE_AFTER_FAILURE_SECONDS)
