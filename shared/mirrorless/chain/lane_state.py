"""The state of a lane: the head of its chain, and the stop, lease and quarantine beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mirrorless.chain.run import Link, Reset, Run


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
    untrue_from: int | None = None
    """See `Stop.untrue_from`; None too where nobody has asked for the lane's stop."""

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


StopReason = Literal[
    "refused",
    "contradiction",
    "broken",
    "remote_recreated",
    "expired",
    "recreated",
    "truncated",
    "held",
    "backfilled",
    "undelivered",
]
"""Why a lane is stopped.

`refused`: the target or the client rejects this record. `contradiction`: the source is not what it was.
`broken`: the target lost what the map has, or the record that would settle a run in doubt. `remote_recreated`: the
remote topic was deleted and created again. `expired`: the end of the map has expired. `recreated`: the source
topic was deleted and created again, so its offsets mean other records. `truncated`: the source lost its end, and
its log parts here from what was copied. `held`: an operator's order. `backfilled`: a backfill ended, as ordered, below
the mapping's position. `undelivered`: a mapping does not deliver this record, mostly because no event can carry it.

Each has its advice in `lanes/operator_actions.py`, and a case in `tests/unit/cli/test_stop_advice.py` that follows it.
"""


ReplicatedRanges = tuple[tuple[int, int], ...]
"""Upstream offsets [from, to), ascending and disjoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The reason for which a lane is stopped, the upstream offset and the time."""

    reason: StopReason
    upstream_offset: int
    detail: str
    at: int
    """ms since the epoch."""
    cause: str = ""
    """Of a record that is refused, see `refusal_causes`; empty where none is, or an earlier version wrote it."""
    untrue_from: int | None = None
    """The upstream offset from which on the map may describe records that are gone, until the lane is reset: on the
    target, whose topic was made anew or has lost records, or on the source. None where all of it holds."""
    by_store: bool = False
    """Whether `at` is by the store's clock, and not before the stop was written: any machine knows its age."""
    replicated: ReplicatedRanges = ()
    """Upstream offsets [from, to) at or above this one whose records, as the source has them now, were replicated,
    ascending: between two of them a mapping's poller has passed some."""

    @property
    def begins_replicated(self) -> bool:
        """Whether it is where a reset ends that brings what is missing before records that were replicated."""
        return bool(self.replicated) and self.replicated[0][0] == self.upstream_offset


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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LeftOut:
    """An order of the operator: records of a range of upstream offsets that are left out."""

    first: int
    next: int
    """The first upstream offset behind the range."""
    cause: str = ""
    """Only those that are refused for this cause; empty: all of them."""
    why: str = ""
    """For the loss ledger."""

    @classmethod
    def each(cls, *offsets: int) -> tuple[LeftOut, ...]:
        """The orders to leave out single records."""
        return tuple(cls(first=offset, next=offset + 1) for offset in sorted(offsets))

    def covers(self, offset: int, cause: str = "") -> bool:
        """Whether it leaves out a record that is refused for a cause; without one, whatever becomes of it."""
        return self.first <= offset < self.next and self.cause in ("", cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """The state of a lane beside its chain."""

    stop: Stop | None = None
    """Its own or, where it has none, the flow's."""
    of_flow: bool = False
    """Whether `stop` is the flow's: only the flow's going on resumes the lane."""
    quarantine: tuple[LeftOut, ...] = ()
    """What an operator ordered to leave out, in order."""
    lease: Lease | None = None
    """Of a job that has not let go of the lane, ended or not."""
    waiting: int | None = None
    """The first upstream offset of the batch that waits for a job, until it is replicated; None when none waits."""
    begun: int | None = None
    """The newest generation that was seen. It outlives the chain: a lane that has begun is never new."""

    def stopped_by(self, stop: Stop) -> Stop | None:
        """The stop to store of a lane for which there is a reason to stop; None where that changes nothing.

        A stop that stands already stays, and says that the map is not true. One that only says that the source
        contradicts the map gives way to one that says where. A flow's stop gives way: its end would let the lane go on.
        """
        standing = self.stop
        if standing is None or self.of_flow:
            return stop
        place = (standing.reason, standing.upstream_offset)
        if stop.reason == "truncated" and standing.reason in {"contradiction", "truncated"}:
            return None if place == (stop.reason, stop.upstream_offset) else stop
        if standing.untrue_from is None and stop.untrue_from is not None:
            return replace(standing, untrue_from=stop.untrue_from)
        return None

    def left_out(self, offset: int, cause: str = "") -> LeftOut | None:
        """The order that leaves out a record; see `LeftOut.covers`."""
        return next((order for order in self.quarantine if order.covers(offset, cause)), None)


RUNNING = LaneState()


def believed(head: Head, state: LaneState) -> Head:
    """The head of a lane as its store shows it; an expired one where nothing is left of the chain of a lane that began.

    Its position is then only the least that it can be.
    """
    if head == NEW_LANE and state.begun is not None:
        return Head(generation=state.begun, position=0, expired=True)
    return head
