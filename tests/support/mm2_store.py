"""MirrorMaker 2's offset translation in Python, for comparison only.

Two parts, each as MM2 4.x has it, without Kafka between them, nor the queue of syncs in flight:

`SyncWriter`   which acknowledged records become an offset sync, (upstream, downstream) of one record
`SyncStore`    64 slots per partition, and the translation that they allow

    slots   0     1     2     3     4          63
            |newest                            |earliest          the older a sync, the fewer of its age are kept
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

SLOTS = 64
NOTHING_EARLY_ENOUGH = -1
"""MM2's answer when even its earliest sync lies behind the requested offset."""


class Sync(NamedTuple):
    """The record at this upstream offset was written at that downstream offset."""

    upstream: int
    downstream: int


@dataclass(slots=True, kw_only=True)
class SyncWriter:
    """State of one partition in the memory of one task: decides when a sync is due."""

    lag_max: int
    """`offset.lag.max`."""
    _upstream: int = -1
    _downstream: int = -1
    _last_sync: int = -1
    """Downstream offset of the last sync that was due; -1 in a task that has written none."""

    def is_due(self, upstream: int, downstream: int) -> bool:
        """Take note of an acknowledged record, and say whether its sync must be sent now."""
        first = self._last_sync < 0
        too_far = downstream - (self._last_sync + 1) >= self.lag_max
        skipped_upstream = upstream - self._upstream != 1
        target_began_anew = downstream < self._downstream

        self._upstream, self._downstream = upstream, downstream
        due = first or too_far or skipped_upstream or target_began_anew
        if due:
            self._last_sync = downstream
        return due


@dataclass(slots=True, kw_only=True)
class SyncStore:
    """The syncs of one partition that are kept, and the translation of an upstream offset by them.

    For slots i < j with different syncs, u being a sync's upstream offset:

    A. slot 0 holds the newest sync;
    B. u[i] <= u[j] + 2^j - 2^i: no slot is too old for its place;
    C. u[i] >= u[j] + 2^max(i-2, 0): neighbours are not too close;
    D. slot 63 holds the earliest sync that may be used.
    """

    started: bool = True
    """Whether the syncs that were there at the task's start have been read."""
    only_the_last_of_the_past: bool = False
    """Of the syncs read before `started`, only the last may be used: the task could not load its checkpoints, and
    must not fall behind those that it once emitted."""
    _slots: list[Sync] = field(default_factory=list)

    @property
    def kept(self) -> list[Sync]:
        """The different syncs that are kept, newest first."""
        return list(dict.fromkeys(self._slots))

    def add(self, sync: Sync) -> None:
        """Take in the next sync of the partition."""
        rewound = bool(self._slots) and sync.upstream < self._slots[0].upstream
        if not self._slots or rewound or (not self.started and self.only_the_last_of_the_past):
            self._slots = [sync] * SLOTS
            return
        self._push(sync)

    def translate(self, upstream: int) -> int | None:
        """The place at which a group that has committed this offset goes on. None while it is undecided.

        A sync below the offset gives the place right after its record: how many of the records in between exist
        downstream, is unknown.
        """
        if not self.started or not self._slots:
            return None
        for sync in self._slots:
            if sync.upstream <= upstream:
                return sync.downstream + (sync.upstream < upstream)
        return NOTHING_EARLY_ENOUGH

    def _push(self, sync: Sync) -> None:
        """Put a sync into slot 0, and move older ones on as far as rule B demands it."""
        old, slots = self._slots.copy(), self._slots
        slots[0] = candidate = sync
        at = 0
        """The old slot whose sync is looked at next; slots are filled from older slots in order."""
        for slot in range(1, SLOTS):
            before = slots[slot - 1]
            while True:
                # The newest of the old syncs that fits between its neighbours, if there is one.
                looked_at = old[at]
                far_from_before = _far_enough(before, looked_at, slot - 1)
                far_from_next = slot + 1 >= SLOTS or _far_enough(looked_at, slots[slot + 1], slot)
                fits = _recent_enough(before, looked_at, slot - 1, slot) and far_from_before and far_from_next
                if fits:
                    candidate = looked_at

                # Passed for good: what the next slot holds as well, and what is too close here and so everywhere.
                repeated = at + 1 < SLOTS and looked_at is old[at + 1]
                passed = repeated or not far_from_before
                if fits or passed:
                    at += 1
                if at >= slot or not passed:
                    break

            # From the first slot that is still recent enough, all later ones are.
            if _recent_enough(before, slots[slot], slot - 1, slot):
                return
            slots[slot] = candidate


def _recent_enough(newer: Sync, older: Sync, i: int, j: int) -> bool:
    """Rule B for the syncs of slots i and j. Identity is meant: an equal sync that came again is another one."""
    return newer is older or newer.upstream <= older.upstream + (1 << j) - (1 << i)


def _far_enough(newer: Sync, older: Sync, i: int) -> bool:
    """Rule C for the syncs of slots i and i + 1."""
    return newer is older or newer.upstream >= older.upstream + (1 << max(i - 2, 0))
