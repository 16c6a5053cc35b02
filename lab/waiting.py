"""The wait for what nothing announces: looks at it, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    obstacle: Callable[[], T], *, seconds: float, every: float = 0.1, over: threading.Event | None = None
) -> T:
    """Look until nothing is in the way; the last obstacle, if one still is after these seconds, or when all is over."""
    deadline, over = time.monotonic() + seconds, over or threading.Event()
    while (found := obstacle()) and time.monotonic() < deadline and not over.wait(every):
        pass
    return found


class RepeatedLook:
    """A thread that looks at something again and again, from `start` until `stop`."""

    def __init__(self, look: Callable[[], object], *, every: float, name: str) -> None:
        self.error: Exception | None = None
        """What a look has raised; there was no other one after it."""
        self.over = threading.Event()
        self._look = look
        self._every = every
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self.over.set()
        if self._thread.is_alive():
            self._thread.join()

    def finish(self) -> None:
        """Look no more. Raises what a look has raised, in the thread that can report it."""
        self.stop()
        if self.error is not None:
            raise self.error

    def _watch(self) -> None:
        try:
            while not self.over.wait(self._every):
                self._look()
        except Exception as exc:  # noqa: BLE001 -- raised by finish(), or told by whoever stops it
            self.error = exc
