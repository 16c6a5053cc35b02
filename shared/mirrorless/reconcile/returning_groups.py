"""Where does each consumer group go on when it returns to the source? Where the joined map says, to the very record.

A group that moved to the target has committed there on the remote topic. Three cases, and one rule: its offset on the
source only ever grows. What it had committed there before the outage it has read, whatever came after.

    its place on the target is in the map            the record's own upstream offset; a gap of orphans is passed
    it has read everything that came back            the lane's position: what was replayed, or is yet to come, is read
    it has read what is not copied back yet          `ahead_of_replication`: run the reconcile again before it returns
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mirrorless.groups.checkpoints import GroupOffset, Readiness, offsets_to_commit
from mirrorless.groups.readiness import Rereads, assess
from mirrorless.lane import Lane
from mirrorless.ports.groups import GroupState, OffsetAndMetadata
from mirrorless.ports.stores import Chains
from mirrorless.protocol.translate import OffsetMap


class ReturningLane(msgspec.Struct, frozen=True, kw_only=True):
    """One place of a group, on both sides."""

    topic: str
    partition: int
    downstream: int
    """What it has committed on the target."""
    upstream: int | None
    """The same place on the source; None without a map."""
    state: str
    """See `mirrorless.protocol.translate.TranslationState`."""
    had: int | None
    """What it had committed on the source."""
    written: bool
    """Whether `upstream` was to be written there."""


class ReturningGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group on its way back."""

    group: str
    readiness: Readiness
    reread: int
    """Records that it would read again on the source."""
    kept: int
    """Records that it has read on the source before the outage, and stands before on the target: they are not read
    again."""
    lanes: tuple[ReturningLane, ...]

    def due(self) -> dict[tuple[str, int], OffsetAndMetadata]:
        """What is to be committed on the source."""
        return {
            (lane.topic, lane.partition): OffsetAndMetadata(lane.upstream)
            for lane in self.lanes
            if lane.written and lane.upstream is not None
        }


def returning(
    group: str,
    chains: Chains,
    *,
    on_target: Mapping[Lane, OffsetAndMetadata],
    on_source: Mapping[Lane, OffsetAndMetadata],
    state_on_source: GroupState,
    covered: Mapping[Lane, int],
) -> ReturningGroup:
    """Where a group goes on.

    Args:
        group: its name.
        chains: with the joined chains.
        on_target: what it has committed there, by forward lane.
        on_source: likewise.
        state_on_source: nothing is written under live members.
        covered: the downstream offset up to which each lane was brought back; a group beyond it is ahead.

    Raises:
        Retriable: the store of chains does not answer.
    """
    offset_map = OffsetMap(chains)
    offsets: dict[Lane, GroupOffset] = {}
    for lane, committed in on_target.items():
        found = offset_map.upstream(lane, committed.offset, stable_end=covered.get(lane))
        offsets[lane] = GroupOffset(found.offset, committed.offset, found.state, committed.metadata)
    active = state_on_source == "active"
    # What the group read here is behind what it reads there: nothing is known from earlier rounds that could hold it.
    due = {} if active else offsets_to_commit("reverse", offsets, None, on_source)
    after = {**on_source, **due}
    reread = 0 if active else Rereads(offset_map=offset_map).count("reverse", group, offsets, after)
    kept = sum(
        offset_map.records_between(lane, offset.upstream, on_source[lane].offset, "upstream")
        for lane, offset in offsets.items()
        if lane in on_source and offset.upstream is not None and offset.usable
    )
    return ReturningGroup(
        group=group,
        readiness=assess("reverse", offsets, active_there=active, reread=reread),
        reread=reread,
        kept=kept,
        lanes=tuple(
            ReturningLane(
                topic=lane.topic,
                partition=lane.partition,
                downstream=offset.downstream or 0,
                upstream=offset.upstream,
                state=offset.state,
                had=on_source[lane].offset if lane in on_source else None,
                written=lane in due,
            )
            for lane, offset in sorted(offsets.items())
        ),
    )
