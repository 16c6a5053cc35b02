"""Calls in number: independent reads in parallel, and rate limits of calls and of bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar


@dataclass(slots=True, kw_only=True)
class RateLimit:
    """A token bucket that holds the tokens of one second."""

    per_second: float
    clock: Callable[[], float]
    """Seconds, from any origin."""
    sleep: Callable[[float], None]
    _tokens: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._tokens = self.per_second
        self._filled_at = self.clock()

    def wait(self) -> None:
        """Wait until the next call is permitted."""
        now = self.clock()
        self._tokens = min(self.per_second, self._tokens + (now - self._filled_at) * self.per_second)
        self._filled_at = now
        if self._tokens < 1:
            # Until the bucket holds the next token.
            self.sleep((1 - self._tokens) / self.per_second)
            now = self.clock()
            self._tokens += (now - self._filled_at) * self.per_second
            self._filled_at = now
        self._tokens -= 1


BIT_SECONDS = 5.0
"""The longest pause in one piece: between two pieces the lease is renewed."""

CREDIT_SECONDS = 1.0
"""The most that a writer slower than its cap may catch up."""


class ByteRateLimit:
    """A cap on the bytes that are written in a second, on average."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._sleep, self._clock = sleep, clock
        self._owed = 0.0
        self._at = clock()

    def spend(self, size: int, meanwhile: Callable[[], None]) -> None:
        """Count written bytes, and wait until more may be written.

        Args:
            size: of what was written.
            meanwhile: called between pauses; it may change the rate.
        """
        self._pass_time()
        self._owed = max(self._owed, -CREDIT_SECONDS * self.bytes_per_second) + size
        while self._owed > 0:
            self._sleep(min(self._owed / self.bytes_per_second, BIT_SECONDS))
            self._pass_time()
            meanwhile()

    def _pass_time(self) -> None:
        now = self._clock()
        self._owed -= (now - self._at) * self.bytes_per_second
        self._at = now


READERS: Final = 8
"""Parallel reads: one takes some milliseconds, nearly all of it network latency."""


_T = TypeVar("_T")


_R = TypeVar("_R")


def in_parallel(call: Callable[[_T], _R], items: list[_T]) -> list[_R]:
    """Call for each item, `READERS` at a time. Returns the results in the items' order; raises the first error."""
    if len(items) <= 1:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(READERS, len(items))) as pool:
        return list(pool.map(call, items))
