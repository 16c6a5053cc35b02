"""The state of a lane: the head of its chain, and the stop, lease and quarantine beside it."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.run import Link, Reset, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a lane's chain: its position and its newest run."""

    generation: int
    position: int
    """First upstream offset that no run covers."""
    run: Run | None = None
    """The newest run of this generation, committed or in doubt; None at the start of a generation."""
    expired: bool = False
    """Whether nothing renewed the end of the chain for so long that newer links may have expired before this one."""

    @property
    def in_doubt(self) -> bool:
        """Whether the newest run is only prepared, so that its records may be visible or not."""
        return self.run is not None and self.run.state == "prepared"


NEW_LANE = Head(generation=0, position=0)
"""A lane without a chain. Its position is 0, whatever its first offset is: rival writers meet at one key."""


def head_of(newest: Link | None) -> Head:
    """Return the head of a chain from its newest link."""
    if newest is None:
        return NEW_LANE
    if isinstance(newest, Reset):
        return Head(generation=newest.to_generation, position=newest.next)
    position = newest.next if newest.state == "committed" else newest.position
    return Head(generation=newest.generation, position=position, run=newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The reason for which a lane is stopped, the upstream offset and the time."""

    reason: str
    """`refused`: the target or the client rejects this record. `contradiction`: the source is not what it was.
    `broken`: the target lost what the map has, or the record that would settle a run in doubt. `recreated`: the source
    topic was deleted and created again, so its offsets mean other records. `truncated`: the source ends below the
    position. `held`: an operator's order. `backfilled`: a backfill ended, as ordered, below the mapping's position."""
    upstream_offset: int
    detail: str
    at: int
    """ms since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A job's exclusive hold on a lane, until the job releases it or the lease ends.

    One that ended without being released is left where it is: its job may not have done its work (`admission.py`).
    """

    holder: str
    """The job run's id."""
    until: int
    """ms since the epoch. A running job renews it."""

    def keeps_out(self, who: str, now: int) -> bool:
        """Whether `who` must wait at `now`, ms since the epoch."""
        return self.holder != who and now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """The state of a lane beside its chain."""

    stop: Stop | None = None
    """Its own or, where it has none and the flow is fenced, the flow's."""
    fenced: bool = False
    """Whether `stop` is the flow's: only the fence's end resumes the lane."""
    quarantine: frozenset[int] = frozenset()
    """Upstream offsets that an operator ordered to leave out."""
    lease: Lease | None = None
    """Of a job that has not let go of the lane, ended or not."""
    waiting: int | None = None
    """The first upstream offset of the batch that waits for a job, until it is replicated; None when none waits."""


RUNNING = LaneState()
