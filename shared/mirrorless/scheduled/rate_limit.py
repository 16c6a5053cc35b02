"""A rate limit for API calls: a token bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


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
