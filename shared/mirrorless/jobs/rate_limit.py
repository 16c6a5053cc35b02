"""The cap on a lane's bytes per second: a pause after each chunk that was written faster than the cap allows."""

from __future__ import annotations

import time
from collections.abc import Callable

BIT_SECONDS = 5.0
"""The longest pause in one piece: between two pieces the lease is renewed."""

CREDIT_SECONDS = 1.0
"""The most that a lane slower than its cap may catch up."""


class LaneRateLimit:
    """Keeps one lane's average at or below its share of the cap."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = bytes_per_second
        self._sleep, self._clock = sleep, clock
        self._free_at = clock()

    def spend(self, size: int, meanwhile: Callable[[], None]) -> None:
        """Count written bytes, and wait until more may be written; `meanwhile` is called between pauses."""
        self._free_at = max(self._free_at, self._clock() - CREDIT_SECONDS) + size / self._rate
        while (left := self._free_at - self._clock()) > 0:
            self._sleep(min(left, BIT_SECONDS))
            meanwhile()
