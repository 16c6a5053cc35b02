"""Several environments, one at a time, in an order that a seed decides: pauses, crashes and lost answers included.

Each attempt runs in a thread of its own that holds a baton; before and after every effect it gives the baton back.
Whoever holds the schedule may resume it, leave it (a zombie), kill it there, or let the effect fail.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from mirrorless.errors import Retriable
from mirrorless.protocol import hooks

TIMEOUT_SECONDS = 20.0
"""A thread that does not come back within this time hangs."""

Port = TypeVar("Port")


class Killed(BaseException):
    """The process is gone: nothing catches it, nothing is cleaned up that a kill -9 would not clean up."""


class Attempt:
    """One invocation, which stops at every point until it is resumed."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.point = "start"
        self._work = work
        self._order: BaseException | None = None
        # Bare locks and a bare thread: there are tens of thousands of attempts, and hundreds of thousands of points.
        self._go, self._back = allocate_lock(), allocate_lock()
        self._go.acquire()
        self._back.acquire()
        start_new_thread(self._run, ())

    @property
    def running(self) -> bool:
        """Whether it is paused somewhere, and not over."""
        return self.point != "end"

    def resume(self, order: BaseException | None = None) -> str:
        """Let it go on to its next point, or raise `order` where it stands. The point that it reached."""
        self._order = order
        self._go.release()
        assert self._back.acquire(timeout=TIMEOUT_SECONDS), f"stuck after {self.point}"
        return self.point

    def finish(self) -> None:
        """Let it run to its end."""
        while self.running:
            self.resume()

    def until(self, point: str) -> None:
        """Let it run to the first point of this name."""
        while self.point != point:
            assert self.running, f"ended before {point}: {self.error}"
            self.resume()

    def pause(self, point: str) -> None:
        """Called in its own thread."""
        if isinstance(self._order, Killed):
            return  # a dead process reaches no point; what still runs here only forgets
        self.point = point
        self._back.release()
        self._go.acquire()
        if self._order is not None:
            raise self._order

    def _run(self) -> None:
        _attempts[get_ident()] = self
        self._go.acquire()
        try:
            if self._order is None:
                self.result = self._work()
            else:
                self.error = self._order
        except BaseException as exc:  # noqa: BLE001  whatever ends it, even a kill, is the attempt's result
            self.error = exc
        self.point = "end"
        del _attempts[get_ident()]
        self._back.release()


_attempts: dict[int, Attempt] = {}
"""By the thread that carries each."""

effects = threading.RLock()
"""Held for each effect of a thread that is no attempt: what is in memory is changed by one at a time."""


def at(point: str) -> None:
    """An attempt stops here until it is resumed; everybody else passes."""
    attempt = _attempts.get(get_ident())
    if attempt is not None:
        attempt.pause(point)


@dataclass(slots=True)
class Watched:
    """A port, every call of which is a point of the schedule before and after its effect."""

    _port: Any
    _name: str
    _check: Callable[[], None]
    """Called after each effect: what must always hold is checked here."""

    def __getattr__(self, method: str) -> Any:
        attribute = getattr(self._port, method)
        if not callable(attribute) or method == "discard_writers":
            return attribute  # nothing outside of the process changes

        def call(*args: Any, **kwargs: Any) -> Any:
            at(f"before {self._name}.{method}")
            # An attempt stands still within the calls that this one makes, and runs alone anyway.
            with nullcontext() if get_ident() in _attempts else effects:
                result = attribute(*args, **kwargs)
                self._check()
            at(f"after {self._name}.{method}")
            # A writer's calls are effects of their own.
            return Watched(result, "writer", self._check) if method.endswith("writer") else result

        return call


def watched(port: Port, name: str, check: Callable[[], None] = lambda: None) -> Port:
    """The port with a point of the schedule around every effect."""
    return Watched(port, name, check)  # type: ignore[return-value]  # it answers to whatever the port answers to


def lost_answer() -> Retriable:
    """What a client raises when the outcome of its request is unknown."""
    return Retriable("no answer")


hooks.observers.append(at)  # the protocol's seven steps are points of the schedule too
