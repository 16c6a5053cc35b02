"""The downstream offsets that the runs of a lane claim, and the room between them where other records may stand.

    downstream   0 .. 9 | 10 | 11 .. 19 | 20 | 21 .. 24 | 25 ..... 99
                  run 1    m     run 2     m      room       room
                 └─────── claimed by the chain ──┘

A run claims the downstream offsets of its spans. The commit of its transaction leaves a marker right behind its last
record: one offset there is no record. Any other room may hold aborted attempts, or records of another producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirrorless.chain.run import Run

MARKER = 1
"""Downstream offsets that a transaction's end takes behind a run."""


@dataclass(slots=True)
class ClaimWalk:
    """What runs claim, taken in the order of the chain."""

    end: int | None = None
    """Downstream: behind the last claim; None where what lies before the next one is not known, or not looked at."""
    marker: int = MARKER
    """Offsets behind `end` that a transaction's end may have taken."""

    def room(self, run: Run) -> Iterator[tuple[int, int]]:
        """The offsets [first, next) before the records of the next run, or between them, that may hold records."""
        for span in run.spans:
            if self.end is not None and span.downstream - self.end > self.marker:
                yield self.end, span.downstream
            self.end, self.marker = max(self.end or 0, span.downstream + span.length), 0
        if run.has_marker:
            self.marker = MARKER
