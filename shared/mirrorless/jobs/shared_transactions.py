"""Transactions that several lanes of one task share: a request to a broker takes one batch of each lane, not of one.

Each lane is copied in a thread of its own, and waits in `replicate` for its outcome. The first that finds nothing under
way waits a moment for the others, writes what all of them have in one transaction, and hands out the outcome. After a
failure the lanes write by themselves for a while, so that one lane's trouble does not become that of all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from mirrorless.clock import Deadline
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import BatchOutcome, Replicator

GATHER_SECONDS: Final = 0.25
"""For the contents of the other lanes, at most: they read at the same time."""

APART_SECONDS: Final = 60.0
"""After a failure."""

CLIENTS: Final = 4
"""Lanes that are copied by the Kafka client at a time: each holds thousands of records, and threads of its own."""

TURN_SECONDS: Final = 5.0
"""For the turn of a lane, until its lease is looked at."""


@dataclass(slots=True, eq=False)
class _Part:
    """What one lane writes."""

    batch: Batch
    outcome: BatchOutcome | None = None
    failure: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.outcome is not None or self.failure is not None


@dataclass(slots=True, kw_only=True)
class SharedTransactions:
    """The transactions of a task's lanes."""

    replicator: Replicator
    """With a writer and positions of its own. Used by one thread at a time."""
    request: str
    """Id of the job run, kept in the runs."""
    deadline: Callable[[], Deadline]
    """Of one transaction, from its beginning."""
    monotonic: Callable[[], float] = time.monotonic
    _sharing: int = 0
    _waiting: list[_Part] = field(default_factory=list)
    _busy: bool = False
    _apart_until: float = float("-inf")
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _clients: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(CLIENTS))

    @property
    def lanes(self) -> int:
        """Lanes that are read by whole batches now."""
        return self._sharing

    @contextmanager
    def client_turn(self, meanwhile: Callable[[], None]) -> Iterator[None]:
        """Wait for a turn with the Kafka client. Args: meanwhile: called again and again; it keeps the lane's lease."""
        while not self._clients.acquire(timeout=TURN_SECONDS):
            meanwhile()
        try:
            yield
        finally:
            self._clients.release()

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Count as one of the lanes whose contents are waited for."""
        with self._changed:
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    def replicate(self, batch: Batch) -> BatchOutcome | None:
        """Replicate the batch of one lane beside those of others; None where it is to be written alone.

        Raises:
            Retriable: as `Replicator.replicate`, for any of the lanes that shared the transaction.
        """
        part = _Part(batch)
        with self._changed:
            if self._sharing < 2 or self.monotonic() < self._apart_until:  # noqa: PLR2004 -- nobody to share with
                return None
            self._waiting.append(part)
            self._changed.notify_all()
            while not part.over and (self._busy or self._waiting[0] is not part):
                self._changed.wait()
            if not part.over:
                self._busy = True
                self._changed.wait_for(lambda: len(self._waiting) >= self._sharing, GATHER_SECONDS)
                parts, self._waiting = self._waiting, []
        if not part.over:
            self._write(parts)
        if part.failure is not None:
            raise part.failure
        return part.outcome

    def _write(self, parts: Sequence[_Part]) -> None:
        joined = Batch(
            records={place: content for part in parts for place, content in part.batch.records.items()},
            covered={place: offset for part in parts for place, offset in part.batch.covered.items()},
            begins={place: offset for part in parts for place, offset in part.batch.begins.items()},
            epochs={place: epoch for part in parts for place, epoch in part.batch.epochs.items()},
            left_out={place: rows for part in parts for place, rows in part.batch.left_out.items()},
            unexamined=frozenset().union(*(part.batch.unexamined for part in parts)),
        )
        try:
            outcome = self.replicator.replicate(joined, request=self.request, deadline=self.deadline())
        except BaseException as exc:  # noqa: BLE001 -- raised in the thread of each lane
            with self._changed:
                self._apart_until = self.monotonic() + APART_SECONDS
                for part in parts:
                    part.failure = exc
        else:
            for part in parts:
                part.outcome = _of(part.batch, outcome)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()


def _of(batch: Batch, outcome: BatchOutcome) -> BatchOutcome:
    """What became of one lane's batch."""
    places = batch.records.keys()
    return BatchOutcome(
        runs=[run for run in outcome.runs if (run.lane.topic, run.lane.partition) in places],
        stopped={place: stop for place, stop in outcome.stopped.items() if place in places},
        waiting={place: found for place, found in outcome.waiting.items() if place in places},
    )
