"""The wall clock of deployed code, and how much time is left. Everything below takes them as arguments."""

from __future__ import annotations

import time
from collections.abc import Callable

Deadline = Callable[[], float]
"""Seconds that are left; every wait is cut to it."""


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
