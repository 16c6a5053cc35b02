"""The wall clock of deployed code, how much time is left, and the pauses between tries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

Deadline = Callable[[], float]
"""Seconds that are left; every wait is cut to it."""


def deadline_in(seconds: float, before: Deadline | None = None) -> Deadline:
    """A deadline after so many seconds. Args: before: another one, which counts while it is nearer."""
    end = time.monotonic() + seconds
    if before is None:
        return lambda: end - time.monotonic()
    return lambda: min(before(), end - time.monotonic())


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


TRIES: Final = 8
"""In a row without progress, until whoever started a copy starts it anew. They span longer than a transaction stays
open."""

PAUSE_SECONDS: Final = 0.25
"""After the first failure; it doubles with each in a row."""

LONGEST_PAUSE_SECONDS: Final = 5.0


def pause_seconds(failures: int, longest: float = LONGEST_PAUSE_SECONDS) -> float:
    """The pause after so many failures in a row."""
    return min(PAUSE_SECONDS * 2.0 ** (failures - 1), longest)
