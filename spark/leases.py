"""How does a driver keep lanes to itself? It takes their leases, and renews them in a thread while it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirrorless.errors import LeaseHeld, Retriable
from mirrorless.lane import Lane
from mirrorless.lane_state import Lease
from mirrorless.ports.stores import Leases

RENEWALS = 3
"""In one term."""


class KeptLeases:
    """The leases of one job run."""

    def __init__(self, leases: Leases, *, holder: str, seconds: int) -> None:
        self._leases = leases
        self._holder = holder
        self._term_ms = seconds * 1000
        self._lanes: list[Lane] = []
        self._lost: LeaseHeld | None = None
        self._over = threading.Event()

    def check(self) -> None:
        """Make sure that the lanes are still ours.

        Raises:
            LeaseHeld: a lease ended, and somebody else took it.
        """
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def of(self, lanes: Sequence[Lane]) -> Iterator[None]:
        """Have these lanes inside the block.

        Raises:
            LeaseHeld: another job has one of them; those that were taken are let go.
            Retriable: the store does not answer.
        """
        thread = threading.Thread(target=self._keep, name="leases", daemon=True)
        try:
            for lane in lanes:
                self._take(lane)
                self._lanes.append(lane)
            thread.start()
            yield
        finally:
            self._over.set()
            if thread.is_alive():
                thread.join()
            for lane in self._lanes:
                self._leases.let_go(lane, self._holder)

    def _take(self, lane: Lane) -> None:
        now = time.time_ns() // 1_000_000
        self._leases.take(lane, Lease(holder=self._holder, until=now + self._term_ms), now=now)

    def _keep(self) -> None:
        while not self._over.wait(self._term_ms / 1000 / RENEWALS):
            for lane in self._lanes:
                try:
                    self._take(lane)
                except LeaseHeld as exc:
                    self._lost = exc
                    return
                except Retriable:
                    continue  # the next round comes well before the term is over
