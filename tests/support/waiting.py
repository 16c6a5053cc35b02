"""Waiting for what happens by itself: in another process, on a broker, in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_SECONDS = 0.05


def eventually(claim: Callable[[], object], what: str = "what the test waits for", *, seconds: float = 120.0) -> None:
    """Look until the claim holds; the time is for machines that are slow or busy.

    Raises:
        AssertionError: it does not hold, in time.
    """
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(LOOK_EVERY_SECONDS)  # between two looks at a condition with a deadline
