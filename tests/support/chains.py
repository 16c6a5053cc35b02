"""A chain in memory, and links to build chains of: the double that the contract suite holds to DynamoDB's behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from mirrorless.chain.chains import JournalChains
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import LaneState, Lease, LeftOut, Stop
from mirrorless.chain.losses import GapSummary, Loss
from mirrorless.chain.run import Link, Reset, Run, RunState, Span
from mirrorless.chain.search import JournalSearch
from mirrorless.chain.store import Journals
from mirrorless.clock import Deadline
from mirrorless.errors import LeaseHeld, LostRace
from mirrorless.ports.stores import Chains
from tests.support.journals import MemoryJournals

FLOW = FlowName("us-east", "eu-west")
LANE = Lane(FLOW, "orders", 0)

NOW = 1_763_686_800.0
"""Seconds since the epoch: when the runs of `run` were settled."""


def run(
    position: int,
    following: int,
    *spans: tuple[int, int, int],
    lane: Lane = LANE,
    generation: int = 0,
    state: RunState = "committed",
    attempt: str = "",
    quarantined: tuple[int, ...] = (),
) -> Run:
    """A run over [position, following) with spans of (upstream, downstream, length)."""
    return Run(
        lane=lane,
        generation=generation,
        position=position,
        next=following,
        spans=tuple(Span(*span) for span in spans),
        state=state,
        writer="mirrorless.us-east.eu-west.test",
        attempt=attempt or f"attempt-{generation}-{position}",
        fingerprint=b"12345678" if spans else b"",
        digest=b"d" * 32 if spans else b"",
        oldest_timestamp=1_000 if spans else -1,
        newest_timestamp=2_000 if spans else -1,
        records=sum(length for *_, length in spans),
        bytes=10,
        quarantined=quarantined,
        request="request-1",
        settled_at=1_763_686_800_123,
    )


def reset(position: int, following: int, *, lane: Lane = LANE, generation: int = 0) -> Reset:
    """The link that closes a generation at `position` and opens the next one at `following`."""
    return Reset(
        lane=lane,
        generation=generation,
        position=position,
        to_generation=generation + 1,
        next=following,
        reason="re-created upstream",
        at=1_763_686_800_123,
    )


class MemoryChains(JournalChains):
    """Chains in journals in memory. Its clock stands when the runs of `run` were settled, so that none has expired."""

    def __init__(self, memory: MemoryJournals | None = None, *, by: Journals | None = None) -> None:
        """Args: memory: shared with other environments. by: what the journals are reached by."""
        self.memory = memory or MemoryJournals()
        super().__init__(journals=by or self.memory, clock=lambda: NOW)

    def beside(self, by: Journals | None = None) -> MemoryChains:
        """The chains of another environment, with a memory of its own."""
        return MemoryChains(self.memory, by=by)

    @property
    def reads(self) -> int:
        """How often the store was read."""
        return self.memory.reads

    @property
    def links(self) -> dict[tuple[Lane, int, int], Link]:
        """Every link that was not withdrawn, by lane, generation and position."""
        return {
            _key(link): link
            for entry in self.memory.entries.values()
            if entry.state != "withdrawn"
            for link in entry.links.values()
        }

    @property
    def expiries(self) -> dict[tuple[Lane, int, int], int]:
        """Seconds since the epoch, of the links whose entries were renewed."""
        return {
            _key(link): expires_at
            for entry in self.memory.entries.values()
            if (expires_at := entry.expires_at) is not None
            if expires_at != entry.settled_at // 1000 + self.retention_seconds
            for link in entry.links.values()
        }

    def of(self, lane: Lane) -> list[Link]:
        """Every link of a lane that was not withdrawn, in order."""
        return sorted((link for link in self.links.values() if link.lane == lane), key=_place)

    def replace_link(self, old: Link, new: Link | None) -> None:
        """Let the store hold another link than was written, or none, as where its entry has expired."""
        for key, entry in list(self.memory.entries.items()):
            if entry.links.get(old.lane.partition) == old:
                if new is None:
                    del self.memory.entries[key]
                else:
                    self.memory.entries[key] = replace(entry, links={**entry.links, old.lane.partition: new})
        self._search = self._ends.search = JournalSearch(self.memory)


@dataclass(slots=True)
class MemoryLaneStates:
    """Implements `mirrorless.ports.stores.LaneStates`, and the operator's orders."""

    states: dict[Lane, LaneState] = field(default_factory=dict)
    flow_stops: dict[FlowName, Stop] = field(default_factory=dict)
    store_now: Callable[[], int | None] = lambda: None
    """See `FlowStops.store_now`."""

    def read(self, lanes: Iterable[Lane], deadline: Deadline | None = None) -> dict[Lane, LaneState]:
        """See `LaneStates.read`."""
        found = {}
        for lane in lanes:
            own, of_flow = self.states.get(lane), None if lane.is_of_a_job else self.flow_stops.get(lane.flow)
            if of_flow is not None and (own is None or own.stop is None):
                found[lane] = replace(own or LaneState(), stop=of_flow, of_flow=True)
            elif own is not None:
                found[lane] = own
        return found

    def flow_stop(self, flow: FlowName) -> Stop | None:
        """See `FlowStops.flow_stop`."""
        return self.flow_stops.get(flow)

    def stop_flow(self, flow: FlowName, stop: Stop) -> None:
        """See `FlowStops.stop_flow`."""
        self.flow_stops[flow] = stop

    def resume_flow(self, flow: FlowName) -> None:
        """See `FlowStops.resume_flow`."""
        self.flow_stops.pop(flow, None)

    def stop(self, lane: Lane, stop: Stop) -> None:
        """See `LaneStates.stop`."""
        self.states[lane] = replace(self.states.get(lane, LaneState()), stop=stop)

    def wait(self, lane: Lane, upstream_offset: int | None) -> None:
        """See `LaneStates.wait`."""
        self.states[lane] = replace(self.states.get(lane, LaneState()), waiting=upstream_offset)

    def drop(self, lane: Lane, lease: Lease) -> None:
        """See `LaneStates.drop`."""
        if (known := self.states.get(lane, LaneState())).lease == lease:
            self.states[lane] = replace(known, lease=None)

    def begin(self, lane: Lane, generation: int) -> None:
        """See `LaneStates.begin`."""
        self.states[lane] = replace(self.states.get(lane, LaneState()), begun=generation)

    def take(self, lane: Lane, lease: Lease, *, now: int) -> LaneState:
        """See `Leases.take`."""
        known = self.states.get(lane, LaneState())
        if known.lease is not None and known.lease.keeps_out(lease.holder, now):
            raise LeaseHeld(f"job run {known.lease.holder} has this lane", where=str(lane))
        same = known.lease is not None and known.lease.holder == lease.holder
        self.states[lane] = replace(known, lease=lease, waiting=known.waiting if same else None)
        return self.states[lane]

    def keep(self, lane: Lane, lease: Lease) -> bool:
        """See `Leases.keep`."""
        known = self.states.get(lane, LaneState())
        if known.lease is None or known.lease.holder != lease.holder:
            return False
        self.states[lane] = replace(known, lease=lease)
        return True

    def let_go(self, lane: Lane, holder: str, *, position: int | None = None) -> bool:
        """See `Leases.let_go`."""
        known = self.states.get(lane, LaneState())
        if known.lease is None or known.lease.holder != holder:
            return True
        if position is not None and known.waiting is not None and known.waiting > position:
            return False
        self.states[lane] = replace(known, lease=None)
        return True

    def release(self, lane: Lane, holder: str) -> None:
        """End the lease of a job that is dead, as its term would: what it left out is still to come."""
        known = self.states.get(lane, LaneState())
        if known.lease is not None and known.lease.holder == holder:
            self.states[lane] = replace(known, lease=Lease(holder=f"{holder} (released)", until=0))

    def resume(self, lane: Lane) -> None:
        """Let the lane try again from where it stopped, or go on from where its mapping is."""
        self.states[lane] = replace(self.states.get(lane, LaneState()), stop=None, waiting=None)

    def begin_anew(self, lane: Lane, stop: Stop | None = None) -> None:
        """Drop the stop, or put another in its place, and drop who waits, a job's lease and every quarantine order."""
        self.states[lane] = LaneState(stop=stop, begun=self.states.get(lane, LaneState()).begun)

    def retry(self, lane: Lane, stop: Stop) -> bool:
        """See `RefusedStops.retry`."""
        known = self.states.get(lane, LaneState())
        if known.stop != stop:
            return False
        self.states[lane] = replace(known, stop=None)
        return True

    def stopped(self, flow: FlowName) -> dict[Lane, LaneState]:
        """See `StoppedLanes.stopped`."""
        return {lane: state for lane, state in self.states.items() if lane.flow == flow and state.stop is not None}

    def quarantine(self, lane: Lane, *orders: LeftOut) -> None:
        """Let these be all orders of a lane to leave out records, and let it go on."""
        known = self.states.get(lane, LaneState())
        self.states[lane] = replace(known, stop=None, quarantine=tuple(sorted(orders)))


@dataclass(slots=True)
class MemoryLossLedger:
    """Implements `mirrorless.ports.stores.LossLedger`."""

    losses: dict[tuple[Lane, int, int], Loss] = field(default_factory=dict)
    explained: dict[tuple[Lane, int], GapSummary] = field(default_factory=dict)

    def note(self, loss: Loss) -> None:
        """See `LossLedger.note`."""
        self.losses[loss.lane, loss.generation, loss.first] = loss

    def read(self, lane: Lane) -> list[Loss]:
        """See `LossLedger.read`."""
        return [self.losses[key] for key in sorted(self.losses) if key[0] == lane]

    def of_lanes(self, lanes: Iterable[Lane]) -> dict[Lane, list[Loss]]:
        """See `LossLedger.of_lanes`."""
        return {lane: self.read(lane) for lane in lanes}

    def summary(self, lane: Lane, generation: int) -> GapSummary:
        """See `LossLedger.summary`."""
        return self.explained.get((lane, generation), GapSummary(lane=lane, generation=generation))

    def summaries(self, lane: Lane) -> list[GapSummary]:
        """See `LossLedger.summaries`."""
        return [self.explained[key] for key in sorted(self.explained) if key[0] == lane]

    def summarise(self, summary: GapSummary, *, known: GapSummary) -> None:
        """See `LossLedger.summarise`."""
        if self.summary(summary.lane, summary.generation).until != known.until:
            raise LostRace("another run explained these gaps", where=summary.lane.at(known.until))
        self.explained[summary.lane, summary.generation] = summary


def _place(link: Link) -> tuple[int, int]:
    return link.generation, link.position


def _key(link: Link) -> tuple[Lane, int, int]:
    return link.lane, link.generation, link.position


def every_run(chains: Chains, lane: Lane) -> list[Run]:
    """Every run of a lane's chain, of whatever state, across resets, in order."""
    found: list[Run] = []
    for generation in range(chains.heads([lane])[lane].generation + 1):
        at = -1
        while links := chains.after(lane, generation, at, limit=100):
            found += [link for link in links if isinstance(link, Run)]
            at = links[-1].position
    return found
