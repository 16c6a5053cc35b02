"""The wall clock of deployed code. Everything below takes its clock as an argument."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
