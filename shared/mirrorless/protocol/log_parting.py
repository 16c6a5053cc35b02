"""Where a source's log parts from the one that was copied, by the epochs of its leaders (KIP-320). Pure.

A log that lost its end, by an unclean leader election or an old disk, is written on from there by the leader of a later
epoch. So what is copied of a log agrees with it up to where the epoch of the last copied record ends in it; above, its
offsets are of other records, however far it has grown since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import ReplicatedRanges, Stop
from mirrorless.chain.run import NO_EPOCH, Run
from mirrorless.flow.naming import reset_lane
from mirrorless.ports.kafka import EpochEnd

_Key = TypeVar("_Key")

STEPS: Final = 64
"""Questions and links, at most: each step goes an epoch or a run back, and a log has a few epochs in a run's time."""


class Parting:
    """The comparison of one lane with its log. It may need several answers, and has one question at a time.

    Attributes:
        at: the upstream offset at which the log parts from what was copied; None: it does not, or nobody knows.
        asks: the epoch whose end is to be asked for next; None once it is known.
        same_to: the upstream offset below which it was seen to be the same log; None: not seen.
    """

    __slots__ = ("_covering", "_first", "_left", "_to", "asks", "at", "same_to")

    def __init__(self, run: Run | None, covering: Callable[[int], Run | None]) -> None:
        """Begin.

        Args:
            run: the newest committed one of the lane; None for none.
            covering: the lane's run of an upstream offset.
        """
        self.at: int | None = None
        self.same_to: int | None = None
        self.asks = None if run is None or run.epoch == NO_EPOCH else run.epoch
        self._covering = covering
        self._to = run.known_to if run is not None else 0
        self._first = True
        self._left = STEPS

    def answered(self, found: EpochEnd) -> None:
        """Take the answer about the epoch that was asked for."""
        asked, self.asks = self.asks or 0, None
        self._left -= 1
        if self._first and found.epoch == asked:
            self.at, self.same_to = (found.end, None) if found.end < self._to else (None, found.end)
            return
        self._first = False
        if self._left <= 0 or (found.epoch < 0 and asked == 0):
            self.at = 0  # nothing of it is known to be the same
        elif found.epoch < 0:
            self.asks = asked - 1
        else:
            self._go_back(found)

    def _go_back(self, found: EpochEnd) -> None:
        """The log has no such epoch: they part where its next lower one ends, or ours does, whichever comes first."""
        self.at = self._to = min(self._to, found.end)
        while self.at and self._left and (own := self._covering(self.at - 1)) is not None:
            self._left -= 1
            if own.epoch > found.epoch:
                self.at = self._to = own.position
            else:
                self.asks = own.epoch if NO_EPOCH < own.epoch < found.epoch else None
                return


def compare(
    partings: Mapping[_Key, Parting], ends: Callable[[Mapping[_Key, int]], Mapping[_Key, EpochEnd] | None]
) -> set[_Key]:
    """Ask until nothing is left to ask. Returns the keys of which nothing was answered.

    Args:
        partings: by place.
        ends: see `LogEpochs.ends`.
    """
    silent: set[_Key] = set()
    while asked := {key: each.asks for key, each in partings.items() if each.asks is not None and key not in silent}:
        found = ends(asked)
        if found is None:
            break  # a cluster that is too old
        silent |= asked.keys() - found.keys()
        for key, end in found.items():
            partings[key].answered(end)
    return silent


def parted_stop(lane: Lane, at: int, *, position: int, now: int, replicated: ReplicatedRanges = ()) -> Stop:
    """The stop of a lane whose log parts from what was copied of it.

    Args:
        lane: the lane.
        at: where they part.
        position: of the lane.
        now: ms since the epoch.
        replicated: see `Stop.replicated`.
    """
    detail = (
        f"the source's log parts at {at} from what was replicated up to {replicated[0][0] if replicated else position}"
        ": it lost its end (an unclean leader election, an old disk), and offsets from there on were given again to "
        "other records. The target keeps what the source lost"
    )
    if replicated:
        detail += f". What the source has since {_ranges(replicated)} was replicated already"
    stop = Stop(reason="truncated", upstream_offset=at, detail=detail, at=now, untrue_from=at, replicated=replicated)
    return replace(stop, detail=f"{detail}. To go on with what the source has since: {going_on(lane, stop)}")


def until_stop(lane: Lane, replicated: ReplicatedRanges, *, now: int) -> Stop:
    """The stop at which a reset ends that brings only what is missing.

    Args:
        lane: the lane.
        replicated: before the reset, see `Stop.replicated`; the lane stops where that begins.
        now: ms since the epoch.
    """
    stop = Stop(
        reason="truncated",
        upstream_offset=replicated[0][0],
        detail=f"as ordered: what the source has {_ranges(replicated)} was replicated before the reset",
        at=now,
        replicated=replicated,
    )
    return replace(stop, detail=f"{stop.detail}. To go on behind it: {going_on(lane, stop)}")


def going_on(lane: Lane, stop: Stop) -> str:
    """The commands by which a lane whose source changed replicates each of its present records once."""
    orders, to = [], stop.upstream_offset
    for first, following in stop.replicated:
        if first > to:
            orders.append(f"{reset_lane(lane, to, until=first)}, and once it stands still before {first}, ")
        to = following
    return "".join([*orders, reset_lane(lane, to)])


def _ranges(replicated: ReplicatedRanges) -> str:
    return " and ".join(f"from {first} to {following - 1}" for first, following in replicated)
