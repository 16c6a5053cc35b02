"""Where does a lane stand, and what must a store of chains be able to do?

The chain of runs is three things at once: the offset map, the lane's position, and the coordinator's log of a
two-phase commit with the target's transaction. All writes are conditional and go to one home region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mirrorless.lane import Lane
from mirrorless.run import Link, Reset, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a lane's chain: what has been replicated, and the run that was last."""

    generation: int
    position: int
    """First upstream offset that no run covers."""
    run: Run | None = None
    """The newest run of this generation, committed or in doubt; None at the birth of a generation."""

    @property
    def in_doubt(self) -> bool:
        """Whether the newest run is only prepared, so that nobody knows yet if its records are visible."""
        return self.run is not None and self.run.state == "prepared"


NEW_LANE = Head(generation=0, position=0)
"""A lane without a chain. It stands at 0, wherever its first record does, so that rivals meet at one key."""


def head_of(newest: Link | None) -> Head:
    """Read the head off the newest link of a chain."""
    if newest is None:
        return NEW_LANE
    if isinstance(newest, Reset):
        return Head(generation=newest.to_generation, position=newest.next)
    position = newest.next if newest.state == "committed" else newest.position
    return Head(generation=newest.generation, position=position, run=newest)


class Chains(Protocol):
    """The store of all lanes' chains. Reads are strongly consistent."""

    def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        """The head of every lane asked for.

        Raises:
            Retriable: when the store does not answer.
        """
        ...

    def prepare(self, runs: Sequence[Run]) -> None:
        """Insert every run, each on condition that no link stands at its key.

        Raises:
            LostRace: when a rival's link stands at one of the keys; some of `runs` may have been inserted.
            Retriable: when the store failed; nobody knows which of `runs` were inserted.
        """
        ...

    def confirm(self, runs: Sequence[Run]) -> None:
        """Mark runs of ours as committed. Marking twice is harmless.

        Raises:
            ChainBroken: when a run is not there any more.
            Retriable: when the store failed; the runs stay in doubt.
        """
        ...

    def withdraw(self, runs: Sequence[Run]) -> None:
        """Delete those of `runs` that are there, prepared, and of the same attempt. Others' runs stay.

        Raises:
            Retriable: when the store failed.
        """
        ...

    def reset(self, link: Reset) -> None:
        """Close a chain with a link.

        Raises:
            LostRace: when another link stands at its key.
        """
        ...

    def renew(self, runs: Sequence[Run], expires_at: int) -> None:
        """Let runs expire later: the head of an idle lane must outlive the map's retention.

        Args:
            runs: those that are gone, or that another attempt replaced, stay as they are.
            expires_at: seconds since the epoch.

        Raises:
            Retriable: when the store failed.
        """
        ...

    def at_or_before(self, lane: Lane, generation: int, upstream: int) -> Link | None:
        """The link with the greatest position that is at most `upstream`."""
        ...

    def after(self, lane: Lane, generation: int, upstream: int, *, limit: int) -> list[Link]:
        """Up to `limit` links with a position greater than `upstream`, in order."""
        ...


class LaneStates(Protocol):
    """Which lanes wait for the operator or for a job, and what the operator ordered."""

    def read(self, lanes: Iterable[Lane]) -> Mapping[Lane, LaneState]:
        """The state of every lane asked for; a lane never written is running."""
        ...

    def stop(self, lane: Lane, stop: Stop) -> None:
        """Note that a lane waits for the operator."""
        ...

    def wait(self, lane: Lane, upstream_offset: int | None) -> None:
        """Note from which upstream offset on a batch waits for a job, which must come that far; None for no longer."""
        ...


class Leases(Protocol):
    """Who has a lane to himself. Every method raises Retriable when the store does not answer."""

    def take(self, lane: Lane, lease: Lease, *, now: int) -> LaneState:
        """Take a lane, or keep it for longer. Forgets who waited when the holder changes.

        Args:
            lane: whose lease.
            lease: the holder, and until when.
            now: ms since the epoch.

        Returns:
            the lane's state with the lease.

        Raises:
            LeaseHeld: another job has it, and its lease has not ended.
        """
        ...

    def keep(self, lane: Lane, lease: Lease) -> bool:
        """Keep a lane for longer, if the lease is the holder's still: one that was ended is not taken again.

        Returns:
            whether it is.
        """
        ...

    def let_go(self, lane: Lane, holder: str, *, position: int | None = None) -> bool:
        """End a lease of `holder`; one that somebody else has stays. Who waited is kept: see `waits_for_history`.

        Args:
            lane: whose lease.
            holder: the job run's id.
            position: where the lane stands; where somebody waits further on, the lease stays. None ends it anyhow.

        Returns:
            whether the holder has the lane no more. Where not, it must come further: see `LaneState.waiting`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a lane stands still, from which upstream offset on, and since when."""

    reason: str
    """`refused`: the target or the client cannot take this record. `contradiction`: the source is not what it was.
    `broken`: a run is in doubt, and the target can no longer say whether it was committed. `recreated`: the source
    topic was deleted and created again, so its offsets mean other records. `truncated`: the source ends below the
    position. `held`: the operator said so. `backfilled`: a backfill ended, as ordered, below where the mapping is."""
    upstream_offset: int
    detail: str
    at: int
    """ms since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A job has the lane to itself: everybody else waits until the job lets go, or the lease ends."""

    holder: str
    """The job run's id."""
    until: int
    """ms since the epoch. A job that lives renews it."""

    def keeps_out(self, who: str, now: int) -> bool:
        """Whether `who` must wait at `now`, ms since the epoch."""
        return self.holder != who and now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """What is known about a lane beside its chain."""

    stop: Stop | None = None
    quarantine: frozenset[int] = frozenset()
    """Upstream offsets that the operator ordered to leave out."""
    lease: Lease | None = None
    """Of a job, ended or not."""
    waiting: int | None = None
    """The first upstream offset of the batch that waits for a job, until it has come through; None when none does."""


RUNNING = LaneState()
