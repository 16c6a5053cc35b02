"""Reads of chains as an offset map: beside a lane's head stands from where on, by the lane's stop, the map is not true.

A lane that is stopped because its remote topic was made anew, or its source topic was, keeps its chain until it is
reset. Until then the chain describes records that are gone, and no offset may be translated by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Head, LaneState
from mirrorless.chain.run import Link
from mirrorless.ports.stores import ChainReads

STOPS_SECONDS: Final = 10.0
"""How long the stops of a flow are taken for true: rounds follow each other faster than lanes stop."""


class StoppedLanes(Protocol):
    """The stopped lanes of a flow."""

    def stopped(self, flow: FlowName) -> Mapping[Lane, LaneState]:
        """Every lane of a flow with a stop of its own.

        Raises:
            Retriable: when the store does not answer.
        """
        ...


@dataclass(slots=True, kw_only=True)
class StopMemory:
    """The stops of one flow, read together: a table of lanes holds those only of which anything was ever noted."""

    flow: FlowName
    lanes: StoppedLanes
    monotonic: Callable[[], float] = time.monotonic
    _stopped: Mapping[Lane, LaneState] = field(default_factory=dict)
    _read_at: float | None = None

    def read(self, lanes: Iterable[Lane]) -> dict[Lane, LaneState]:
        """Those of some lanes that are stopped.

        Raises:
            Retriable: when the store does not answer.
        """
        now = self.monotonic()
        if self._read_at is None or now - self._read_at >= STOPS_SECONDS:
            self._stopped, self._read_at = self.lanes.stopped(self.flow), now
        return {lane: self._stopped[lane] for lane in lanes if lane in self._stopped}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapReads:
    """Implements `mirrorless.ports.stores.ChainReads`, with heads that heed the stops of their lanes."""

    chains: ChainReads
    stops: Callable[[Iterable[Lane]], Mapping[Lane, LaneState]]
    """The states of some lanes; those that run may be left out."""

    def untrue(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """By lane, the upstream offset from which on its map may describe records that are gone.

        Raises:
            Retriable: when the store does not answer.
        """
        return {
            lane: first
            for lane, state in self.stops(lanes).items()
            if state.stop is not None and (first := state.stop.untrue_from) is not None
        }

    def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        """See `ChainReads.heads`. The stops first: a lane that is reset meanwhile has its old one a moment longer."""
        wanted = list(lanes)
        untrue = self.untrue(wanted)
        heads = self.chains.heads(wanted)
        return heads | {lane: replace(heads[lane], untrue_from=first) for lane, first in untrue.items()}

    def at_or_before(self, lane: Lane, generation: int, upstream: int, *, head: Head | None = None) -> Link | None:
        """See `ChainReads.at_or_before`."""
        return self.chains.at_or_before(lane, generation, upstream, head=head)

    def after(self, lane: Lane, generation: int, upstream: int, *, limit: int, head: Head | None = None) -> list[Link]:
        """See `ChainReads.after`."""
        return self.chains.after(lane, generation, upstream, limit=limit, head=head)
