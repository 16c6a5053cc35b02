"""A call in another thread while the client sends, timed so that both end together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Besides:
    """Calls in another thread, each begun so late that it ends about when the body beside it does."""

    def __init__(self) -> None:
        self._body_s = self._call_s = 0.0

    @contextmanager
    def making(self, call: Callable[[], None] | None) -> Iterator[None]:
        """Make a call besides the body; it is over when this is left, and what it raised is raised. None: no call."""
        began = time.monotonic()
        if call is None:
            yield
            self._body_s = _smoothed(self._body_s, time.monotonic() - began)
            return
        over, failures = threading.Event(), list[Exception]()

        def late() -> None:
            over.wait(max(0.0, self._body_s - self._call_s))
            started = time.monotonic()
            try:
                call()
            except Exception as exc:  # noqa: BLE001 -- raised below, in the thread that waits for it
                failures.append(exc)
            self._call_s = _smoothed(self._call_s, time.monotonic() - started)

        thread = threading.Thread(target=late)
        thread.start()
        try:
            yield
            self._body_s = _smoothed(self._body_s, time.monotonic() - began)
        finally:
            over.set()
            thread.join()
        if failures:
            raise failures[0]


def _smoothed(before: float, now: float) -> float:
    """The mean of what was and what is: one slow call must not count for long."""
    return (before + now) / 2 if before else now
