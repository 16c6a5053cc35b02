"""Can this group move to the other side now, and what would it read again?

A consumer that starts over there goes on where its group has committed there, else, with MM2's client, where the
checkpoints say. `reread` counts the records between that place and the exact one: records, not offsets, because a log
has markers and gaps. What the group has read and nobody has replicated yet comes on top, as `ahead`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mirrorless.groups.checkpoints import Direction, GroupOffset, Readiness, here_and_there
from mirrorless.lane import Lane
from mirrorless.ports.groups import OffsetAndMetadata
from mirrorless.protocol.translate import OffsetMap


def assess(direction: Direction, offsets: Mapping[Lane, GroupOffset], *, active_there: bool, reread: int) -> Readiness:
    """The state of a group, the gravest first.

    Args:
        direction: which way the group would move.
        offsets: its places on both sides.
        active_there: whether it has members where it would move to.
        reread: see `Rereads`.
    """
    states = {offset.state for offset in offsets.values()}
    if active_there:
        return "active_on_target" if direction == "forward" else "active_on_source"
    # Without a map nothing has come over yet; on the way back, records without a map came by somebody else's hand.
    if "before_map" in states or (direction == "reverse" and "no_map" in states):
        return "before_map"
    if states & {"ahead_of_replication", "no_map"}:
        return "ahead_of_replication"
    return "behind" if reread > 0 else "ready"


def found_by(
    offsets: Mapping[Lane, GroupOffset], committed_there: Mapping[Lane, OffsetAndMetadata]
) -> Literal["group", "checkpoint"]:
    """By what a consumer finds its place over there; `group` only if that tells of every place."""
    usable = [lane for lane, offset in offsets.items() if offset.usable]
    return "group" if usable and all(lane in committed_there for lane in usable) else "checkpoint"


@dataclass(slots=True, kw_only=True)
class Rereads:
    """Counts records between two places of a lane, and counts on from what it counted before."""

    offset_map: OffsetMap
    _counted: dict[tuple[Direction, str, Lane], tuple[int, int, int]] = field(default_factory=dict)
    """First offset, end, and the number of records between."""

    def forget(self) -> None:
        """Count everything anew."""
        self._counted.clear()

    def count(
        self,
        direction: Direction,
        group: str,
        offsets: Mapping[Lane, GroupOffset],
        committed_there: Mapping[Lane, OffsetAndMetadata],
    ) -> int:
        """Records that a consumer of the group would read again over there.

        Raises:
            Retriable: the store of chains does not answer.
        """
        total = 0
        for lane, offset in offsets.items():
            _, there = here_and_there(direction, offset)
            key = (direction, group, lane)
            if not offset.usable or there is None or lane not in committed_there:
                self._counted.pop(key, None)
                continue
            first = committed_there[lane].offset
            if first >= there:
                self._counted.pop(key, None)
                continue
            number = self._between(direction, lane, first, there, self._counted.get(key))
            self._counted[key] = (first, there, number)
            total += number
        return total

    def _between(
        self, direction: Direction, lane: Lane, first: int, end: int, before: tuple[int, int, int] | None
    ) -> int:
        side: Literal["upstream", "downstream"] = "downstream" if direction == "forward" else "upstream"
        if before is not None:
            old_first, old_end, number = before
            # A group that does not move while its source does, or that reads on where it was: count the difference.
            if old_first <= first <= old_end <= end:
                gone = self.offset_map.records_between(lane, old_first, first, side)
                return number - gone + self.offset_map.records_between(lane, old_end, end, side)
        return self.offset_map.records_between(lane, first, end, side)
