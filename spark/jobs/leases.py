"""Leases and holds of the lanes of a job run: both keep the forwarder and other jobs away.

A lease has a term and ends by itself when its job dies. A hold is a stop of reason `held`: it outlives the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import LaneState, Lease, Stop
from mirrorless.clock import now_ms
from mirrorless.copy.lane import lost
from mirrorless.errors import LeaseHeld, MirrorlessError
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.ports.stores import LaneStates, Leases
from mirrorless.reconcile.inspect import HELD
from mirrorless.reports.format import visible

RENEWALS = 3
"""In one term."""

SKEW_MS = 10 * 60_000
"""Between the clocks of two machines at most: AWS refuses a signature that is five minutes old, or early.
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html)"""

TICK_MS = 2_000
"""Of the store's clock, which tells whole seconds, and of the way to it."""


class KeptLeases:
    """The leases of one job run, renewed by a thread.

    Args:
        leases: their store.
        holder: the job run's id.
        seconds: the term of a lease.
        throughout: whether the run needs every lease to its end; not where tasks end the leases of their lanes.
    """

    def __init__(self, leases: Leases, *, holder: str, seconds: int, throughout: bool) -> None:
        self._leases = leases
        self._holder = holder
        self._term_ms = seconds * 1000
        self._throughout = throughout
        self._lanes: list[Lane] = []
        self._lost: LeaseHeld | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_over, name="leases", daemon=True)

    def check(self) -> None:
        """Make sure that the lanes are still this run's.

        Raises:
            LeaseHeld: a lease was ended by an operator, or another job has taken the lane.
        """
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def of(self, lanes: Sequence[Lane]) -> Iterator[None]:
        """Keep these lanes inside the block.

        Raises:
            LeaseHeld: another job has one of them; those that were taken are let go.
            Retriable: the store does not answer.
        """
        try:
            self.take(lanes)
            yield
        finally:
            self.stop()
            in_parallel(self.let_go, self._lanes)

    def take(self, lanes: Sequence[Lane]) -> dict[Lane, LaneState]:
        """Take lanes, and renew what is taken until `stop`: the first ones while the last ones are still being taken.

        Returns:
            their states.

        Raises:
            LeaseHeld: another job has one of them.
            Retriable: the store does not answer.
        """
        self._thread.start()
        return dict(zip(lanes, in_parallel(self._take, lanes), strict=True))

    @property
    def taken(self) -> Sequence[Lane]:
        """The lanes that were taken, also where others could not be."""
        return tuple(self._lanes)

    def _take(self, lane: Lane) -> LaneState:
        state = self._leases.take(lane, self._lease(), now=now_ms())
        self._lanes.append(lane)
        return state

    def stop(self) -> None:
        """Renew nothing more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def let_go(self, lane: Lane) -> None:
        """End the lease of one lane, if it is still this run's."""
        self._leases.let_go(lane, self._holder)

    def _lease(self) -> Lease:
        return Lease(holder=self._holder, until=now_ms() + self._term_ms)

    def renew(self) -> None:
        """Renew once what is still this run's. Never by `take`: that would undo an operator's `lanes release`."""
        in_parallel(self._renew, self.taken)

    def _renew(self, lane: Lane) -> None:
        if self._over.is_set() or self._lost is not None:
            return
        try:
            if not self._leases.keep(lane, self._lease()) and self._throughout:
                self._lost = lost(lane)
        except MirrorlessError as exc:
            # The next renewal comes well before the end of the term.
            print(visible(f"the lease of {lane} is not renewed: {exc}"))

    def _renew_until_over(self) -> None:
        while not self._over.wait(self._term_ms / 1000 / RENEWALS):
            self.renew()


class LaneHolds(LaneStates, Protocol):
    """States of lanes whose stops can be ended."""

    def resume(self, lane: Lane) -> None:
        """Let the lane try again from where it stopped, or go on from where its mapping is."""
        ...

    def store_now(self) -> int | None:
        """See `mirrorless.ports.stores.FlowStops.store_now`."""
        ...


@dataclass(slots=True, kw_only=True)
class HeldLanes:
    """The stops of reason `held` of one job run's lanes."""

    states: LaneHolds
    run_id: str
    settle_ms: int
    """How long a warm forwarder may replicate without having read that its lane is held."""
    clock: Callable[[], int] = now_ms
    """ms since the epoch."""
    sleep: Callable[[float], None] = time.sleep

    def since(self, lanes: Sequence[Lane]) -> int | None:
        """The time at which the first of them was held, ms since the epoch; None when none is."""
        return min((stop.at for stop in self._stops(lanes).values() if stop.reason == HELD), default=None)

    def hold(self, lanes: Sequence[Lane]) -> str:
        """Hold every lane that is not stopped, and wait until every environment has read it; a warning, or nothing."""
        stops = self._stops(lanes)
        loose = [lane for lane in lanes if lane not in stops]

        # A lane of a stopped flow gets a stop of its own, and stays held after that where the run does not finish it.
        def stop(lane: Lane) -> None:
            known = stops.get(lane) or Stop(reason=HELD, upstream_offset=0, detail="", at=self.clock())
            detail = f"held by job run {self.run_id}"
            self.states.stop(lane, replace(known, reason=HELD, upstream_offset=0, detail=detail))

        in_parallel(stop, [*loose, *self._stopped_with_flow(lanes)])
        # An environment cannot be queried, but none keeps a lane's state for longer than this.
        left = [self.settle_ms if loose else 0, *(self._left(stop) for stop in stops.values() if stop.reason == HELD)]
        if max(left) > 0:
            self.sleep(max(left) / 1000)
        if not loose:
            return ""
        return (
            f"{len(loose)} lanes were not held: what the forwarder replicated since the source came back counts as "
            "replicated; hold the flow's lanes as soon as its source is lost"
        )

    def _left(self, stop: Stop) -> int:
        """How long it may take, in ms, until every environment has read a hold; 0 and less where all have."""
        now = self.states.store_now() if stop.by_store else None
        if now is not None:
            return self.settle_ms + TICK_MS - max(0, now - stop.at)
        # How old it is, is only known as well as the clocks of two machines agree.
        return self.settle_ms if self.clock() - stop.at < self.settle_ms + SKEW_MS else 0

    def release(self, lanes: Iterable[Lane]) -> None:
        """End the holds."""
        stops = self._stops(list(lanes))
        in_parallel(self.states.resume, [lane for lane, stop in stops.items() if stop.reason == HELD])

    def _stopped_with_flow(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Lanes that are held by their flow's stop alone."""
        states = self.states.read(lanes)
        return [lane for lane in lanes if lane in states and states[lane].of_flow]

    def _stops(self, lanes: Sequence[Lane]) -> dict[Lane, Stop]:
        states = self.states.read(lanes)
        found = {lane: states.get(lane, LaneState()).stop for lane in lanes}
        return {lane: stop for lane, stop in found.items() if stop is not None}
