"""The progress of a command's steps: a line at least every two seconds, also of a step that has nothing to say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from cli.output import duration

EVERY_SECONDS: Final = 2.0


@dataclass(slots=True)
class StepProgress:
    """Lines of a command that is at work. As a context it ends with the command."""

    out: Callable[[str], None]
    """Prints a line."""
    every_seconds: float = EVERY_SECONDS
    _step: str = ""
    _began: float = 0.0
    _said_at: float = field(default_factory=time.monotonic)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, text: str) -> None:
        """Print a line of the step's own."""
        with self._lock:
            self._said_at = time.monotonic()
            self.out(text)

    def begin(self, step: str) -> None:
        """Note which step runs from now on: `3/9 drain`."""
        with self._lock:
            self._step, self._began = step, time.monotonic()

    def __enter__(self) -> Self:
        """Begin to watch, in a thread."""
        threading.Thread(target=self._watch, name="step progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self.every_seconds / 4):
            with self._lock:
                now = time.monotonic()
                if self._step and now >= self._said_at + 0.75 * self.every_seconds:
                    self._said_at = now
                    self.out(f"{self._step}: at work for {duration(int((now - self._began) * 1000))}")
