"""The engine of a task's copies: whole record batches, or records by the Kafka client.

A request to a broker takes one batch of each lane of a task: where batches are small and the target is far, the task
waits for most of its time, and the client, which packs larger batches, is faster. So there are two grounds. What the
batches that come would cost either way is estimated before they are written. And where whole batches are slow, the
client is tried, and the faster one goes on. Both are forgotten after a while, for a log changes.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirrorless.protocol.copy_choice import MARGIN, BatchTally, Engine
from mirrorless.records.record_batch import PassTerms, RecordBatch, obstacle

LEAST_SAVED_US: Final = 50_000.0
"""Of CPU: what the client would have saved so far, until it is taken, for its producer must be opened."""

COLD_SECONDS: Final = 2.0
"""Of copying at first, whose pace does not count: brokers that have just started seem to be distant."""

WATCHED_SECONDS: Final = 2.0
WATCHED_BYTES: Final = 1_000_000
"""Of copying by whole batches, both, until their pace counts. Shorter tasks never try the client."""

SLOW_BYTES: Final = 4_000_000
"""A second: what comes to less waits for a distant target, about 25 ms away where six lanes have batches of 16 KB."""

TRIAL_SECONDS: Final = 10.0
TRIAL_BYTES: Final = 64_000_000
"""Of copying by the client, both, until its pace counts."""

FIRST_HELD_SECONDS: Final = 20.0
HELD_SECONDS: Final = 300.0
"""Of copying, after which a choice is made anew. The client is held for the first, and for twice as long each time:
what was slow may have passed."""

FAILURES: Final = 3
"""In a row by whole batches, until the client has a try: it serves brokers that are too old for the other engine."""

LONE_BATCH_US: Final = 90.0
"""CPU of a batch that passes alone in its request, beside what it takes where several lanes share one."""


@dataclass(slots=True)
class EngineChoice:
    """The choice for one task."""

    engine: Engine = "batches"
    _pace: float = 0.0
    """Upstream offsets a second of whole batches, where the client is tried."""
    _held_seconds: float = 0.0
    """For which the other engine is not to be tried."""
    _next_held_seconds: float = FIRST_HELD_SECONDS
    """The same, when the client is taken next."""
    _lost_us: float = 0.0
    """CPU that the client would have saved since the engine was taken."""
    _cold_seconds: float = COLD_SECONDS
    """Left of `COLD_SECONDS`."""
    _failures: int = 0
    _offsets: int = 0
    _bytes: int = 0
    _seconds: float = 0.0
    """All three: copied since the engine was taken."""

    def seen(self, batches: Sequence[RecordBatch], terms: PassTerms, *, alone: bool) -> None:
        """Choose by what has come of a lane, before it is written. Args: alone: whether none shares its requests."""
        passing, opened = BatchTally(), BatchTally()
        passes = {each.base_offset for each in batches if obstacle(each, terms, position=0) is None}
        passing.note([each for each in batches if each.base_offset in passes])
        opened.note([each for each in batches if each.base_offset not in passes])
        by_batches = passing.cost_passed() + opened.cost_opened() + len(batches) * LONE_BATCH_US * alone
        by_client = passing.cost_by_client() + opened.cost_by_client()
        if by_client * MARGIN < by_batches:
            self._lost_us += by_batches - by_client
        if self._lost_us >= LEAST_SAVED_US:
            self.use_client()

    def use_client(self) -> None:
        """Take the Kafka client for a while, without a trial."""
        self._take("records", held_seconds=self._next_held_seconds)
        self._next_held_seconds = min(2 * self._next_held_seconds, HELD_SECONDS)

    def copied(self, offsets: int, size: int, seconds: float) -> None:
        """Note a transaction that was written, and choose by pace.

        Args:
            offsets: upstream, that it covered.
            size: of its bytes.
            seconds: that reading and writing took.
        """
        self._failures = 0
        if self.engine == "batches":
            self._cold_seconds -= seconds
            if self._cold_seconds >= 0:
                return
        self._offsets += offsets
        self._bytes += size
        self._seconds += seconds
        if self._held_seconds:
            if self._seconds >= self._held_seconds:
                self._take("batches", held_seconds=0.0)
        elif self.engine == "batches":
            if self._seconds >= WATCHED_SECONDS and self._bytes >= WATCHED_BYTES:
                self._pace = self._offsets / self._seconds
                if self._bytes < self._seconds * SLOW_BYTES:
                    self._take("records", held_seconds=0.0)
                else:
                    self._take("batches", held_seconds=HELD_SECONDS)
        elif self._seconds >= TRIAL_SECONDS and self._bytes >= TRIAL_BYTES:
            if self._offsets / self._seconds > self._pace * MARGIN:
                self.use_client()
            else:
                self._take("batches", held_seconds=HELD_SECONDS)

    def failed(self) -> None:
        """Note that a transaction was not written."""
        self._failures += 1
        if self._failures >= FAILURES and self.engine == "batches":
            self.use_client()

    def _take(self, engine: Engine, *, held_seconds: float) -> None:
        self.engine, self._held_seconds = engine, held_seconds
        self._offsets, self._bytes, self._seconds, self._lost_us, self._failures = 0, 0, 0.0, 0.0, 0
