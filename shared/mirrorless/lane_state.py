"""The state of a lane: the head of its chain, and the stop, lease and quarantine beside it."""

from __future__ import annotations

from dataclasses import dataclass

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
