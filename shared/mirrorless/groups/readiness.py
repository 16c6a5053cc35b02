"""The readiness of a group to move to the other side, and the records it would read again or skip there.

A consumer that starts over there resumes at its group's commit there, else, with MM2's client, at the checkpoint.
`reread` counts the records between that offset and the exact one, and `skip` those from the exact one to a later
offset: records, not offsets, because a log has markers and gaps. Records that the group has read and that are not
replicated yet are counted apart, as `ahead`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mirrorless.chain.lane import Lane
from mirrorless.groups.checkpoints import Direction, GroupOffset, Readiness, here_and_there
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.protocol.past import Side
from mirrorless.protocol.translate import OffsetMap


def assess(
    direction: Direction,
    offsets: Mapping[Lane, GroupOffset],
    *,
    active_there: bool,
    reread: int,
    skip: int = 0,
    independent: bool = False,
) -> Readiness:
    """The readiness of a group; the most serious state wins.

    Args:
        direction: of the move.
        offsets: its offsets on both sides.
        active_there: whether it has members where it would move to.
        reread: see `Rereads`.
        skip: likewise.
        independent: whether one of its offsets there is not this flow's, which would commit them.
    """
    states = {offset.state for offset in offsets.values()}
    if active_there:
        return "active_on_target" if direction == "forward" else "active_on_source"
    # Forward, no map means that nothing is replicated yet; in reverse, that the records of the remote topic
    # have another writer.
    if states & {"map_lost", "before_map"} or (direction == "reverse" and "no_map" in states):
        return "map_lost" if "map_lost" in states else "before_map"
    if independent:
        return "independent"
    if skip > 0:
        return "ahead_on_target" if direction == "forward" else "ahead_on_source"
    if states & {"out_of_range", "gone", "ahead_of_replication", "no_map"}:
        return "out_of_range" if states & {"out_of_range", "gone"} else "ahead_of_replication"
    return "behind" if reread > 0 or "approximate" in states else "ready"


def found_by(
    offsets: Mapping[Lane, GroupOffset], committed_there: Mapping[Lane, OffsetAndMetadata]
) -> Literal["group", "checkpoint"]:
    """Where a consumer finds its offsets there; `group` only if the group has a commit for every usable offset."""
    usable = [lane for lane, offset in offsets.items() if offset.usable]
    return "group" if usable and all(lane in committed_there for lane in usable) else "checkpoint"


@dataclass(slots=True, kw_only=True)
class Rereads:
    """Counts of the records between two offsets of a lane, continued from the count before."""

    offset_map: OffsetMap
    counterpart: OffsetMap | None = None
    """Of the flow in the other direction, whose records stand between the same offsets."""
    both: bool = True
    """Whether its records are counted: not while it does not answer."""
    _counted: dict[tuple[Direction, str, Lane], tuple[int, int, int]] = field(default_factory=dict)
    """First offset, end, and the number of records between."""

    def forget(self) -> None:
        """Drop the counts."""
        self._counted.clear()

    def count(
        self,
        direction: Direction,
        group: str,
        offsets: Mapping[Lane, GroupOffset],
        committed_there: Mapping[Lane, OffsetAndMetadata],
        comparable: Collection[Lane] = (),
    ) -> tuple[int, int]:
        """Records that a consumer of the group would read again over there, and those that it would skip.

        Args:
            direction: of the move.
            group: its name.
            offsets: its offsets on both sides.
            committed_there: its commits on the other side.
            comparable: the lanes on which records are skipped where the commit there is beyond the offset here.

        Raises:
            Retriable: the store of chains does not answer.
        """
        reread = skip = 0
        for lane, offset in offsets.items():
            _, there = here_and_there(direction, offset)
            key = (direction, group, lane)
            if not offset.usable or there is None or lane not in committed_there:
                self._counted.pop(key, None)
                continue
            committed = committed_there[lane].offset
            if there < committed <= there + offset.bound:
                there = committed  # the exact place may be there
            first, end = min(committed, there), max(committed, there)
            if first == end or (committed > there and lane not in comparable):
                self._counted.pop(key, None)
                continue
            number = self._between(direction, lane, first, end, self._counted.get(key))
            self._counted[key] = (first, end, number)
            reread += number if committed < there else 0
            skip += number if committed > there else 0
        return reread, skip

    def _between(
        self, direction: Direction, lane: Lane, first: int, end: int, before: tuple[int, int, int] | None
    ) -> int:
        side: Side = "downstream" if direction == "forward" else "upstream"
        if before is not None:
            old_first, old_end, number = before
            # The group stood still while its source grew, or read on: count the difference only.
            if old_first <= first <= old_end <= end:
                passed = self.records(lane, old_first, first, side)
                return number - passed + self.records(lane, old_end, end, side)
        return self.records(lane, first, end, side)

    def records(self, lane: Lane, first: int, end: int, side: Side) -> int:
        """How many records stand at offsets [first, end) of one side, by both maps."""
        count = self.offset_map.records_between(lane, first, end, side)
        if self.counterpart is None or not self.both:
            return count
        turned = Lane(lane.flow.turned, lane.topic, lane.partition)
        return count + self.counterpart.records_between(
            turned, first, end, "upstream" if side == "downstream" else "downstream"
        )
