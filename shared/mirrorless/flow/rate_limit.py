"""Calls in number: independent reads in parallel, and rate limits of calls and of bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


WINDOW_SECONDS: Final = 5.0
"""Over any such time a cap holds."""

ALLOWANCE_SECONDS: Final = 1.0
"""For which a cap allows what is written at once, and what a writer slower than its cap may catch up."""

AHEAD_SECONDS: Final = 60.0
"""For which a write that is larger than the allowance is paid before it is made, at most; the rest afterwards. Of a
record for which a cap has not room in a whole run, nothing would ever be written otherwise."""

BIT_SECONDS: Final = 5.0
"""The longest pause in one piece: between two pieces the lease is renewed."""

TURN_SECONDS: Final = 0.1
"""Between two looks of one that waits for others."""

_NOTHING: Final = 1e-3
"""Bytes, or ms, below which a difference is one of rounding."""


@dataclass(slots=True, eq=False)
class _Payment:
    size: int
    written_at: float | None = None
    """None while it is being written."""


class ByteRateLimit:
    """A cap on the bytes that are written in a second: they are paid for before they are written.

    It holds over any `WINDOW_SECONDS`, whenever within its block a write takes effect; only one that is larger by
    itself exceeds it, and of that what is not paid in `AHEAD_SECONDS` is a debt. Writers of several threads wait for
    their turn.
    """

    def __init__(
        self,
        bytes_per_second: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self.paused_seconds = 0.0
        """For which writers have waited."""
        self._sleep, self._clock = sleep, clock
        self._lock = threading.Lock()
        self._turns: list[_Payment] = []
        self._written: list[_Payment] = []
        # What another process has written just now, whose place this one takes, counts too.
        self._saved = -2.0 * self.allowance
        self._at = clock()

    @property
    def allowance(self) -> int:
        """Bytes of one write at most."""
        return max(1, int(self.bytes_per_second * ALLOWANCE_SECONDS))

    @contextmanager
    def paid(self, size: int, meanwhile: Callable[[], None]) -> Iterator[None]:
        """Wait until so many bytes may be written; they are written inside the block.

        Args:
            size: of what will be written.
            meanwhile: called between pauses; it may change the rate.
        """
        turn, began = _Payment(size), self._clock()
        with self._lock:
            self._turns.append(turn)
        try:
            while (pause := self._pause(turn)) > 0:
                self._sleep(min(pause, BIT_SECONDS))
                meanwhile()
        except BaseException:
            with self._lock:
                self._turns.remove(turn)
            raise
        self.paused_seconds += self._clock() - began
        try:
            yield
        finally:
            turn.written_at = self._clock()

    def _pause(self, turn: _Payment) -> float:
        """The pause until the next look; zero where it is paid."""
        with self._lock:
            now, rate, first = self._clock(), self.bytes_per_second, self._turns[0]
            most = max(min(first.size, rate * AHEAD_SECONDS), rate * ALLOWANCE_SECONDS)
            self._saved, self._at = min(most, self._saved + (now - self._at) * rate), now
            if first is not turn:
                return TURN_SECONDS
            if (lacking := min(turn.size, most) - self._saved) > _NOTHING:
                return lacking / rate
            since = now - WINDOW_SECONDS + _NOTHING / 1000
            self._written = [each for each in self._written if each.written_at is None or each.written_at > since]
            inside = sum(each.size for each in self._written)
            if self._written and inside + turn.size > rate * WINDOW_SECONDS + _NOTHING:
                ended = [each.written_at for each in self._written if each.written_at is not None]
                return min(ended) + WINDOW_SECONDS - now if ended else TURN_SECONDS
            self._saved -= turn.size
            self._written.append(self._turns.pop(0))
            return 0.0


READERS: Final = 8
"""Parallel reads: one takes some milliseconds, nearly all of it network latency."""


_T = TypeVar("_T")


_R = TypeVar("_R")


def in_parallel(call: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Call for each item, `READERS` at a time; the results in the items' order. After an error no more is begun."""
    if len(some := list(items)) <= 1:
        return [call(item) for item in some]
    with ThreadPoolExecutor(min(READERS, len(some))) as pool:
        try:
            return list(pool.map(call, some))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
