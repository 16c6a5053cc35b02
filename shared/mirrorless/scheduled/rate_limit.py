"""Calls in number: independent reads in parallel, and a rate limit as a token bucket."""

from __future__ import annotations

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
