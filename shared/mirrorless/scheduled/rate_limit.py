"""How fast may an API be called? A bucket of tokens that fills at the API's rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class RateLimit:
    """Lets calls pass at a steady rate, and a second's worth of them at once."""

    per_second: float
    clock: Callable[[], float]
    """Seconds, from any beginning."""
    sleep: Callable[[float], None]
    _tokens: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._tokens = self.per_second
        self._filled_at = self.clock()

    def wait(self) -> None:
        """Return once the next call may go."""
        now = self.clock()
        self._tokens = min(self.per_second, self._tokens + (now - self._filled_at) * self.per_second)
        self._filled_at = now
        if self._tokens < 1:
            # A wait of known length: the moment at which the bucket holds the next token.
            self.sleep((1 - self._tokens) / self.per_second)
            now = self.clock()
            self._tokens += (now - self._filled_at) * self.per_second
            self._filled_at = now
        self._tokens -= 1
