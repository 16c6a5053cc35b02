"""The options to replicate a set of topics, each at its lowest cost within a latency.

A latency is seconds from a record's arrival on the source to its commit on the target, at the 99th percentile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from mirrorless.cost import bill
from mirrorless.cost.bill import USUAL, BilledSettings, Loads, MappingSettings, Mode
from mirrorless.cost.shards import ShardSettings, fits, pull_p99, pulled
from mirrorless.flow.triggers import LONGEST_WINDOW_SECONDS

MEMORIES: Final = (320, 384, 448, 512, 576, 640, 704, 768, 896, 1024, 1280, 1536, 1769, 2560, 3584)
"""MB of a scheduled function that are tried."""

SHARDS: Final = (*range(1, 13), 14, 16, 20, 24, 32, 40, 48, 64)

LONGEST_WINDOW: Final = 300
LONGEST_INTERVAL: Final = 86_400
MINUTE: Final = 60

CHECKPOINT_SECONDS: Final = MINUTE
"""Between two checkpoints, at most: MM2's default, and the schedule's own interval."""

SHORTEST_GATHER: Final = 0.2
"""Seconds of a continuous run: without a pause it would write an entry for nearly every record."""

GATHER_STEPS: Final = 20
"""Of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What options are held against.

    Attributes:
        latency: seconds that may be waited for, at the 99th percentile.
        half_second: whether windows may be left out: a mapping that once had another never gets half a second again.
        settings: of the flow.
    """

    latency: float
    half_second: bool = True
    settings: BilledSettings = USUAL

    @property
    def checkpoint_seconds(self) -> float:
        """Between two checkpoints: as long as a record may wait, where the flow's own interval is not longer."""
        return max(self.settings.checkpoint_seconds, min(float(CHECKPOINT_SECONDS), float(int(self.latency))))

    def windows(self) -> Iterator[int | None]:
        """Of mappings, from the longest that may do to none."""
        yield from _falling(min(LONGEST_WINDOW, int(self.latency)))
        if self.half_second:
            yield None
        yield 0

    def gathers(self) -> Iterator[float]:
        """Windows of continuous runs, `schedule.window.seconds`, from the longest that may do, by 50 ms."""
        steps = int(min(LONGEST_WINDOW_SECONDS, self.latency) * GATHER_STEPS)
        shortest = int(SHORTEST_GATHER * GATHER_STEPS)
        yield from (each / GATHER_STEPS for each in range(max(shortest, steps), shortest - 1, -1))

    def intervals(self) -> Iterator[float]:
        """Of scheduled runs, from the longest that may do to the shortest that there is."""
        minutes = max(1, min(LONGEST_INTERVAL, int(self.latency)) // MINUTE)
        yield from (float(each * MINUTE) for each in _falling(minutes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to replicate topics.

    Attributes:
        mapping: of the mapped topics; None where there are none.
        pull: of the scheduled topics; None where there are none.
        checkpoint_seconds: between two checkpoints.
        parts: dollars a month, everything of the flow.
        p99: seconds.
        meets: whether the latency is kept.
    """

    mapping: MappingSettings | None = None
    pull: ShardSettings | None = None
    checkpoint_seconds: float
    parts: Mapping[str, float]
    p99: float
    meets: bool

    @property
    def dollars(self) -> float:
        """A month."""
        return sum(self.parts.values())


def mapping_settings(loads: Loads, mode: Mode, goal: Goal) -> MappingSettings:
    """The longest window that keeps the latency for all topics; none where no window does."""
    for window in goal.windows():
        mapping = MappingSettings(mode=mode, window=window)
        if all(bill.mapping_p99(load, mapping, goal.settings) <= goal.latency for load in loads):
            return mapping
    return MappingSettings(mode=mode, window=0)


def pull_settings(loads: Loads, goal: Goal, *, continuous: bool) -> ShardSettings | None:
    """The settings that cost least; None where no number of shards suffices.

    Where none keeps the latency: of intervals the cheapest, of continuous runs those with the least latency.

    Args:
        loads: the scheduled topics.
        goal: to keep.
        continuous: whether runs follow each other without a pause.
    """
    best: tuple[bool, float] = True, inf
    chosen: ShardSettings | None = None
    for memory in MEMORIES:
        for seconds in goal.gathers() if continuous else goal.intervals():
            found = _fewest_shards(loads, memory, seconds, continuous=continuous)
            if found is None:
                break  # what does not fit into a window fits into a shorter one still less
            p99 = pull_p99(loads, found)
            slow = p99 > goal.latency
            rank = slow, p99 if slow and continuous else sum(pulled(loads, found, goal.settings).values())
            if rank < best:
                best, chosen = rank, found
            if not slow:
                break
    return chosen


def _fewest_shards(loads: Loads, memory: int, seconds: float, *, continuous: bool) -> ShardSettings | None:
    tried = (
        ShardSettings(continuous=continuous, seconds=seconds, shards=shards, memory_mb=memory) for shards in SHARDS
    )
    return next((pull for pull in tried if fits(loads, pull)), None)


def option(
    mapped_loads: Loads,
    mapping: MappingSettings | None,
    pulled_loads: Loads,
    pull: ShardSettings | None,
    goal: Goal,
    *,
    checkpoint_seconds: float | None = None,
) -> Option:
    """One way to replicate a flow's topics, some of them by mappings and some by schedule.

    Args:
        mapped_loads: topics with mappings.
        mapping: their settings.
        pulled_loads: topics by schedule.
        pull: their settings.
        goal: to be held against.
        checkpoint_seconds: between two checkpoints; by default as the goal allows.
    """
    seconds = goal.checkpoint_seconds if checkpoint_seconds is None else checkpoint_seconds
    settings = replace(goal.settings, checkpoint_seconds=seconds)
    costs = [bill.shared([*mapped_loads, *pulled_loads], settings)]
    p99 = 0.0
    mapping, pull = mapping if mapped_loads else None, pull if pulled_loads else None
    if mapping is not None:
        costs.append(bill.mapped(mapped_loads, mapping, settings))
        p99 = max(bill.mapping_p99(load, mapping, settings) for load in mapped_loads)
    if pull is not None:
        costs.append(pulled(pulled_loads, pull, settings))
        p99 = max(p99, pull_p99(pulled_loads, pull))
    meets = p99 <= goal.latency
    return Option(
        mapping=mapping, pull=pull, checkpoint_seconds=seconds, parts=bill.together(*costs), p99=p99, meets=meets
    )


def by_mappings(loads: Loads, mode: Mode, goal: Goal) -> Option:
    """All topics by mappings."""
    return option(loads, mapping_settings(loads, mode, goal), (), None, goal)


def by_schedule(loads: Loads, goal: Goal, *, continuous: bool) -> Option | None:
    """All topics by schedule; None where no number of shards suffices."""
    pull = pull_settings(loads, goal, continuous=continuous)
    return option((), None, loads, pull, goal) if pull else None


def _falling(longest: int) -> Iterator[int]:
    """From the longest down to 1, by steps of one, or of a fortieth where that is more."""
    value = longest
    while value > 0:
        yield value
        value -= max(1, value // 40)
