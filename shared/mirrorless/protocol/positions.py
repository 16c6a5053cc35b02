"""Positions and states of a batch's lanes: cached while the environment is warm, otherwise read and settled.

A remembered position may be stale: then preparing a run at it fails, which is safe. What was read is only used once no
run of the lane is in doubt.

Positions are remembered for as long as they serve. Stops and orders are read again once a minute: a scheduled function
or the operator may have written one, or a job may have taken a lane. Until then the chain decides between the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head, LaneState, Stop, believed
from mirrorless.chain.run import Link, Reset, Run
from mirrorless.clock import Deadline
from mirrorless.errors import LostRace
from mirrorless.ports.kafka import Target
from mirrorless.ports.stores import Chains, LaneStates
from mirrorless.protocol.recovery import settle_doubts, unsettled_stop

END = 2**63 - 1
"""Above every offset."""

PAGE, LARGEST_PAGE = 8, 512
"""Links of the first query of a comparison with the chain, and of the largest: each query takes eight times as many as
the one before. Most redelivered batches lie in a few runs; a group that was moved back may cross thousands."""

MARKER = 1
"""Upstream offsets between two batches that a transaction's end explains."""

STATES_MS = 60_000
"""How long a remembered stop, or its absence, is taken for true."""

ORDERED_MS = STATES_MS + 10_000
"""After an order as long ago, no function prepares a run without having read it (`Positions.heed_orders`). The tries of
a prepare are in it."""


@dataclass(slots=True, kw_only=True)
class Positions:
    """The heads and states of lanes, as cached in this environment."""

    chains: Chains
    states: LaneStates
    target: Target
    clock: Callable[[], int]
    """ms since the epoch."""
    holder: str = ""
    """The job run that replicates; empty for a function."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds, for ages: the wall clock may be set back."""
    _heads: dict[Lane, Head] = field(default_factory=dict)
    _states: dict[Lane, LaneState] = field(default_factory=dict)
    _read_at: dict[Lane, tuple[int, float]] = field(default_factory=dict)
    """When each state was read, on both clocks."""

    def load(
        self,
        lanes: Iterable[Lane],
        remote_topic: Callable[[str], str],
        deadline: Deadline,
        begins: Mapping[Lane, int] | None = None,
    ) -> frozenset[Lane]:
        """Load the state of every lane, and the head of those without another holder; settle what is in doubt.

        Args:
            lanes: those of a batch.
            remote_topic: the topic on the target of a source topic.
            deadline: seconds left.
            begins: the first upstream offset of each lane in the batch. Where it lies beyond the position that is
                remembered, another environment has probably had the lane meanwhile, and the head is read again: a
                question is cheaper than a race that is lost after everything was written. Below the position too: the
                operator may have reset the lane, and then nothing there counts as replicated.

        Returns:
            the lanes with another holder. Their heads are not read: to settle a job's run would fence the job.

        Raises:
            LostRace: when a rival was faster to prepare a lane anew.
            InDoubt: when a run's fate cannot be known yet.
            Retriable: when a store or the target does not answer.
        """
        wanted, now = list(lanes), self.clock()
        self._heads = {lane: head for lane, head in self._heads.items() if not head.expired}
        doubted = {
            lane: self._heads.pop(lane).generation
            for lane, first in (begins or {}).items()
            if lane in self._heads and not 0 <= first - self._heads[lane].position <= MARKER
        }
        unknown = [lane for lane in wanted if lane not in self._heads]
        outdated = [lane for lane in wanted if lane not in self._states or self._state_age_ms(lane) >= STATES_MS]
        if outdated:
            self._read_states(outdated, deadline)
        leased = frozenset(lane for lane in wanted if self._leased(lane, now))
        unknown = [lane for lane in unknown if lane not in leased]
        if not unknown:
            return leased
        heads = self.chains.heads(unknown)
        doubtful = [head.run for head in heads.values() if head.run is not None and head.in_doubt]
        settled = self._settle(doubtful, remote_topic, deadline)
        heads |= self.chains.heads(settled)
        if any(heads[lane].in_doubt for lane in settled):
            raise LostRace("a rival prepared the lane anew while a run in doubt was settled", where=str(settled[0]))
        heads = {lane: believed(head, self._states[lane]) for lane, head in heads.items()}
        self._stop_expired({lane: head for lane, head in heads.items() if head.expired})
        for lane, head in heads.items():
            if head != NEW_LANE and not head.expired:
                self._begun(lane, head.generation)
        # Orders name records of one generation: those that are remembered may have been dropped with it.
        anew = [lane for lane, generation in doubted.items() if lane in heads and heads[lane].generation != generation]
        if anew:
            self._read_states(anew, deadline)
        self._heads.update(heads)
        return leased

    def heed_orders(self, lanes: Iterable[Lane], deadline: Deadline) -> None:
        """Read those states again with which a batch began and that are too old by now.

        An event may take many minutes. Without this, one that began just before a hold would pass over it.

        Raises:
            LostRace: an order came meanwhile; the batch is to begin again with it.
            Retriable: the store does not answer.
        """
        outdated = [lane for lane in lanes if self._state_age_ms(lane) >= STATES_MS]
        if not outdated:
            return
        before, now = {lane: self._states[lane] for lane in outdated}, self.clock()
        self._read_states(outdated, deadline)
        for lane, state in before.items():
            read = self._states[lane]
            if (read.stop, read.quarantine) != (state.stop, state.quarantine) or self._leased(lane, now):
                raise LostRace("an order for this lane came while the batch was written", where=str(lane))

    def head(self, lane: Lane) -> Head:
        """The head of a loaded lane."""
        return self._heads[lane]

    def state(self, lane: Lane) -> LaneState:
        """The state of a loaded lane."""
        return self._states[lane]

    def advance(self, runs: Iterable[Run]) -> None:
        """These runs are committed: their lanes stand behind them now."""
        for run in runs:
            self._heads[run.lane] = Head(generation=run.generation, position=run.next, run=run)
            self._begun(run.lane, run.generation)

    def stop(self, lane: Lane, stop: Stop) -> None:
        """Put a stop where the operator finds it, and read the operator's answer at the next delivery."""
        if stop != self._states[lane].stop and not self._place_known(lane, stop):
            self.states.stop(lane, stop)
        self.forget([lane])

    def _place_known(self, lane: Lane, stop: Stop) -> bool:
        """Whether a stop is a contradiction above the place at which a check has stopped the lane meanwhile."""
        if stop.reason != "contradiction" or stop.untrue_from is None:
            return False
        standing = self.states.read([lane]).get(lane, RUNNING).stop
        return standing is not None and standing.reason == "truncated" and stop.untrue_from >= standing.upstream_offset

    def wait(self, lane: Lane, upstream_offset: int) -> None:
        """Record how far the job must come; its runs are read at the next delivery."""
        if upstream_offset != self._states[lane].waiting:
            self.states.wait(lane, upstream_offset)
        self.forget([lane])

    def came_through(self, lane: Lane) -> None:
        """Drop what a delivered batch has left behind: an offset that waited, and the lease of a job that died."""
        state = self._states[lane]
        if state.waiting is not None:
            self.states.wait(lane, None)
        if state.lease is not None:
            self.states.drop(lane, state.lease)
        if state.waiting is not None or state.lease is not None:
            self.forget([lane])

    def forget(self, lanes: Iterable[Lane] | None = None) -> None:
        """Drop what is remembered about some lanes, or about all."""
        for lane in list(self._heads.keys() | self._states.keys() if lanes is None else lanes):
            self._heads.pop(lane, None)
            self._states.pop(lane, None)
            self._read_at.pop(lane, None)

    def links_over(self, lane: Lane, first: int, last: int) -> list[Link]:
        """The chain's links over upstream offsets below the position; across resets that skipped ahead, not back."""
        head = self._heads[lane]
        if head.run is not None and head.run.position <= first:
            return [head.run]
        generation = head.generation
        while (link := self.chains.at_or_before(lane, generation, first)) is None and generation > 0:
            generation -= 1
            opener = self.chains.at_or_before(lane, generation, END)
            if not isinstance(opener, Reset) or opener.next < opener.position:
                break
        links: list[Link] = []
        found, page = [] if link is None else [link], PAGE
        while found:
            links += found
            newest = links[-1]
            if newest.next > last:
                break
            generation, at = (newest.to_generation, -1) if isinstance(newest, Reset) else (generation, newest.position)
            # A link covers one offset at least, so no more of them are left than offsets.
            found = self.chains.after(lane, generation, at, limit=min(page, last + 1 - newest.next))
            page = min(page * PAGE, LARGEST_PAGE)
        return links

    def _stop_expired(self, heads: Mapping[Lane, Head]) -> None:
        """Stop lanes with a chain whose end may have expired: what was replicated last is not known any more."""
        for lane, head in heads.items():
            detail = (
                "the end of its offset map was not renewed for the whole retention, and has expired or may have: what "
                f"was replicated last is not known, at least all below {head.position} was"
            )
            stop = Stop(reason="expired", upstream_offset=head.position, detail=detail, at=self.clock())
            self._states[lane] = replace(self._states[lane], stop=stop)
            self.states.stop(lane, stop)

    def _begun(self, lane: Lane, generation: int) -> None:
        """Keep beside the chain, which expires, that there is one."""
        state = self._states[lane]
        if state.begun != generation:
            self.states.begin(lane, generation)
            self._states[lane] = replace(state, begun=generation)

    def _read_states(self, lanes: Sequence[Lane], deadline: Deadline) -> None:
        read_at = self.clock(), self.monotonic()
        self._states.update(dict.fromkeys(lanes, RUNNING) | dict(self.states.read(lanes, deadline)))
        self._read_at.update(dict.fromkeys(lanes, read_at))

    def _leased(self, lane: Lane, now: int) -> bool:
        """Whether another holder has the lane."""
        lease = self._states[lane].lease
        return lease is not None and lease.keeps_out(self.holder, now)

    def _state_age_ms(self, lane: Lane) -> float:
        """The greater of two ages: the wall clock may be set back, the other may stand still in a frozen machine."""
        wall, monotonic = self._read_at[lane]
        return max(self.clock() - wall, (self.monotonic() - monotonic) * 1000)

    def _settle(self, runs: Sequence[Run], remote_topic: Callable[[str], str], deadline: Deadline) -> list[Lane]:
        """Settle runs in doubt, and return their lanes; where that needs the operator, only that lane stops."""
        broken = settle_doubts(runs, remote_topic, chains=self.chains, target=self.target, deadline=deadline)
        for run in runs:
            if run.lane in broken:
                stop = unsettled_stop(run, broken[run.lane], now=self.clock())
                self._states[run.lane] = replace(self._states[run.lane], stop=stop)
                self.states.stop(run.lane, stop)
        return [run.lane for run in runs if run.lane not in broken]
