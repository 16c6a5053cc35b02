"""Offset translation between two clusters that replicate a topic to each other under one name.

Each log holds records of its own and copies, in an order of its own, so no single offset on the other side has read
exactly what a group has read here. The place to go on is the first record there that the group has not read, of either
kind, by the maps of both flows:

    copied there   the first record here, from the offset on, that the flow from here to there has copied: it is unread
    produced there the first record there whose copy here stands at the offset or behind it, by the flow from there to
                   here; what that flow has not read yet, is unread as well

Nothing is skipped. Records between the place and what the group has read are read again, and counted; where producers
stand still and both flows have arrived there are none, and the place is exact.

Pure but for reading links through the `Chains` port.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.ports.stores import ChainReads
from mirrorless.protocol.translate import MAP_LOST, OffsetMap, Translation, is_lost


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWay:
    """The map of one flow, and its lane with the head as it was read."""

    offsets: OffsetMap
    lane: Lane
    head: Head

    @classmethod
    def of(cls, chains: ChainReads, lane: Lane, head: Head) -> OneWay:
        """A lane of a flow, by its chains."""
        return cls(offsets=OffsetMap(chains), lane=lane, head=head)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoWayPlace:
    """A committed offset on the other side."""

    found: Translation
    reread: int = 0
    """Records from the place on that the group has read here already."""
    lags: bool = False
    """Whether the flow from there to here has not come as far as the other one yet: the place moves on when it has."""
    parts: tuple[int | None, int | None] = (None, None)
    """The first unread record that was copied there, and of those produced there: equal for equal reading."""


NOWHERE = TwoWayPlace(found=Translation(offset=None, state="no_map"))


def place_there(out: OneWay, back: OneWay, offset: int, *, stable_end: int | None) -> TwoWayPlace:
    """The place on the other side of an offset that a group has committed here.

    Args:
        out: of the flow from here to there.
        back: of the flow from there to here.
        offset: the first offset here that the group has not read.
        stable_end: of the log here, read after the group's offset and before the heads; None where it was not read.
    """
    if back.head == NEW_LANE:
        return NOWHERE  # of the records there, nothing is known
    copied = out.offsets.next_downstream(out.lane, offset, head=out.head)
    produced = back.offsets.upstream(back.lane, offset, head=back.head, stable_end=stable_end)
    if is_lost(out.head, offset) or produced.state == "map_lost":
        return TwoWayPlace(found=MAP_LOST)
    at_end = produced.state == "no_map" or produced.offset == back.head.position
    own = back.head.position if produced.offset is None else produced.offset
    parts = (None if copied is None else copied.offset, own)
    before = "before_map" in (produced.state, copied.state if copied is not None else "")
    if copied is not None and copied.offset is not None and copied.offset <= own:
        # What was produced there and read here, between the two.
        reread = back.offsets.records_between(back.lane, copied.offset, own, "upstream", head=back.head)
        found = Translation(offset=copied.offset, state="before_map") if before else copied
        return TwoWayPlace(found=found, reread=reread, parts=parts)
    # What was copied there before the group's offset ends here, or at the next copy.
    end = out.offsets.end(out.lane, out.head) if copied is None else copied.offset
    reread = 0 if end is None else out.offsets.records_between(out.lane, own, end, "downstream", head=out.head)
    if before:
        return TwoWayPlace(found=Translation(offset=own, state="before_map"), reread=reread, parts=parts)
    ahead = offset > out.head.position
    if not at_end:
        found = Translation(offset=own, state="ahead_of_replication" if ahead else "next_record")
        return TwoWayPlace(found=found, reread=reread, parts=parts)
    lags = (end is not None and own < end) or produced.state == "ahead_of_replication"
    found = Translation(offset=own, state="ahead_of_replication" if ahead or lags else "exact")
    return TwoWayPlace(found=found, reread=reread, lags=lags, parts=parts)
