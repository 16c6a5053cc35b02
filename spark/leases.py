"""How does a driver keep lanes to itself? It takes their leases, and renews them in a thread while it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.errors import LeaseHeld, Retriable
from mirrorless.lane import Lane
from mirrorless.lane_state import LaneState, Lease, Stop
from mirrorless.ports.stores import Leases
from mirrorless.reconcile.inspect import HELD
from spark.driver import now

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


@dataclass(slots=True, kw_only=True)
class HeldLanes:
    """The stops of reason `held` of one job run's lanes."""

    states: DynamoDbLaneStates
    run_id: str
    settle_ms: int
    """For how long a warm forwarder may not have seen that its lane is held."""

    def since(self, lanes: Sequence[Lane]) -> int | None:
        """When the first of them was held, ms since the epoch; None when none is."""
        return min((stop.at for stop in self._stops(lanes).values() if stop.reason == HELD), default=None)

    def hold(self, lanes: Sequence[Lane]) -> str:
        """Hold what nobody held, and wait until every environment has seen it; what is to be told about that."""
        stops = self._stops(lanes)
        loose = [lane for lane in lanes if lane not in stops]
        for lane in loose:
            detail = f"held by job run {self.run_id}"
            self.states.stop(lane, Stop(reason=HELD, upstream_offset=0, detail=detail, at=now()))
        newest = now() if loose else max((stop.at for stop in stops.values() if stop.reason == HELD), default=0)
        # Environments cannot be asked, but none trusts what it remembers of a lane for longer than this.
        time.sleep(max(0, newest + self.settle_ms - now()) / 1000)
        if not loose:
            return ""
        return (
            f"{len(loose)} lanes were not held: what the forwarder brought over since the source came back counts as "
            "replicated; hold the flow's lanes as soon as its source is lost"
        )

    def release(self, lanes: Iterable[Lane]) -> None:
        """Let the flow run live again."""
        for lane, stop in self._stops(list(lanes)).items():
            if stop.reason == HELD:
                self.states.resume(lane)

    def _stops(self, lanes: Sequence[Lane]) -> dict[Lane, Stop]:
        states = self.states.read(lanes)
        found = {lane: states.get(lane, LaneState()).stop for lane in lanes}
        return {lane: stop for lane, stop in found.items() if stop is not None}
