"""Where would each consumer group go on on the other side, and what follows from that? Values, and pure decisions.

Forward, a group reads the source and would go on on the target; reverse, it reads the target and would go back. `here`
is the side where a group's commits were read, `there` is the other one:

    forward   here = source, upstream offset     ->  there = target, downstream offset
    reverse   here = target, downstream offset   ->  there = source, upstream offset

Three rules keep group offsets out of harm, whoever writes:

1. Never backwards: an offset is written only where the group has none, or a lower one.
2. Never under live members: a group is written only where it sleeps. Where it lives, it is only followed.
3. A commit is carried over once. What one side has from the other is no news for the way back, so the two directions
   do not answer each other; and when an operator rewinds a sleeping group, nothing undoes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from mirrorless.lane import FlowName, Lane
from mirrorless.mm2.internal_records import Checkpoint
from mirrorless.ports.groups import OffsetAndMetadata
from mirrorless.protocol.translate import TranslationState

Direction = Literal["forward", "reverse"]

Readiness = Literal[
    "active_on_target", "active_on_source", "before_map", "ahead_of_replication", "behind", "ready", "excluded"
]
"""
active_on_target      the group has members there already (forward)
active_on_source      the same, of the way back (reverse)
before_map            a place of it lies below what the map still knows: there is no exact place to go on
ahead_of_replication  it has read records that are not on the other side yet; those would come again
behind                its offsets there are older than its offsets here: `reread` records would come again
ready                 it would go on exactly where it is
excluded              the flow's filter refuses it; no document is kept
"""

Numbers = dict[str, dict[int, int]]
"""A number by source topic and partition."""


class GroupOffset(msgspec.Struct, frozen=True, array_like=True):
    """One place of a group, on both sides; in JSON `[upstream, downstream, state, metadata]`."""

    upstream: int | None
    """None when it cannot be told (reverse, without a map)."""
    downstream: int | None
    """None when it cannot be told (forward, without a map)."""
    state: TranslationState
    metadata: str = ""

    @property
    def usable(self) -> bool:
        """Whether a consumer may go on there without missing a record. `before_map` has lost what lay between."""
        told = self.upstream is not None and self.downstream is not None
        return told and self.state in {"exact", "next_record", "ahead_of_replication"}

    @property
    def final(self) -> bool:
        """Whether nothing that is replicated later can improve it."""
        return self.state in {"exact", "next_record"}


class GroupCheckpoints(msgspec.Struct, frozen=True):
    """What is known of one group in one direction; the document `forward/<group>` or `reverse/<group>`."""

    group: str
    direction: Direction
    at: int
    """When this was found, ms since the epoch; what has not changed is not written again."""
    readiness: Readiness
    offsets: dict[str, dict[int, GroupOffset]]
    """By source topic, in both directions, and partition."""
    by: Literal["group", "checkpoint"] = "checkpoint"
    """By what a consumer would find its place there: what the group has committed there, or the checkpoints."""
    reread: int = 0
    """Records that a consumer would read again over there, exactly; not counting `ahead`."""
    ahead: int = 0
    """Upstream offsets that the group has read and that are not replicated yet."""
    carried: Numbers = {}
    """The group's offset here that the group there has got, or did not need."""
    told: bool = True
    """Whether the readers of the checkpoints topic know all this; otherwise all of it is emitted once more."""

    @property
    def key(self) -> str:
        """Of the document."""
        return f"{self.direction}/{self.group}"

    def lanes(self, flow: FlowName) -> Iterator[tuple[Lane, GroupOffset]]:
        """Every place of the group."""
        for topic, partitions in self.offsets.items():
            for partition, offset in partitions.items():
                yield Lane(flow, topic, partition), offset

    def carried_offset(self, lane: Lane) -> int | None:
        """The offset here that was carried over last; None for none."""
        return self.carried.get(lane.topic, {}).get(lane.partition)


def here_and_there(direction: Direction, offset: GroupOffset) -> tuple[int | None, int | None]:
    """The offset on the side where the group's commits were read, and the one on the other side."""
    return (offset.upstream, offset.downstream) if direction == "forward" else (offset.downstream, offset.upstream)


def checkpoints_to_emit(
    direction: Direction, group: str, new: Mapping[Lane, GroupOffset], last: GroupCheckpoints | None
) -> dict[Lane, Checkpoint]:
    """The checkpoints of a group that are news to the readers of the checkpoints topic, with the source's topic names.

    Ours are exact, so the offset there goes down only when the group was rewound here: then that is news as well. A
    place that cannot be used has no checkpoint, and the one before it stands (MM2: a translation of -1 is skipped).
    In a checkpoint `upstream` is the offset here and `downstream` the one there, whichever way the flow runs.

    Args:
        direction: which way.
        group: whose.
        new: what was found in this round.
        last: what was found before.
    """
    told = last.offsets if last is not None and last.told else {}
    found = {}
    for lane, offset in new.items():
        before = told.get(lane.topic, {}).get(lane.partition)
        here, there = here_and_there(direction, offset)
        if here is None or there is None or not offset.usable:
            continue
        if before is None or not before.usable or not _same_place(before, offset):
            found[lane] = Checkpoint(
                group=group,
                topic=lane.topic,
                partition=lane.partition,
                upstream=here,
                downstream=there,
                metadata=offset.metadata,
            )
    return found


def _same_place(one: GroupOffset, other: GroupOffset) -> bool:
    """Whether two offsets are one for a reader; how a place was found changes without the place."""
    return (one.upstream, one.downstream, one.metadata) == (other.upstream, other.downstream, other.metadata)


def offsets_to_commit(
    direction: Direction,
    new: Mapping[Lane, GroupOffset],
    last: GroupCheckpoints | None,
    committed_there: Mapping[Lane, OffsetAndMetadata],
) -> dict[Lane, OffsetAndMetadata]:
    """What a sleeping group should be given on the other side.

    Args:
        direction: which way.
        new: what was found in this round.
        last: what was carried over before.
        committed_there: what the group has there.
    """
    writes = {}
    for lane, offset in new.items():
        here, there = here_and_there(direction, offset)
        if there is None or not offset.usable:
            continue
        known = committed_there.get(lane)
        is_news = last is None or last.carried_offset(lane) != here
        if known is None or (is_news and known.offset < there):
            writes[lane] = OffsetAndMetadata(there, offset.metadata)
    return writes


def carried_over(
    direction: Direction,
    new: Mapping[Lane, GroupOffset],
    last: GroupCheckpoints | None,
    committed_there: Mapping[Lane, OffsetAndMetadata],
) -> Numbers:
    """The offsets here that the group there has got, or stands beyond. Whatever may still improve is not among them.

    Args:
        direction: which way.
        new: what was found in this round.
        last: what was carried over before.
        committed_there: what the group has there, after this round's commits.
    """
    carried: Numbers = {}
    for lane, offset in new.items():
        here, there = here_and_there(direction, offset)
        known = committed_there.get(lane)
        number = last.carried_offset(lane) if last is not None else None
        if offset.final and here is not None and there is not None and known is not None and known.offset >= there:
            number = here
        if number is not None:
            carried.setdefault(lane.topic, {})[lane.partition] = number
    return carried


def by_topic(offsets: Mapping[Lane, GroupOffset]) -> dict[str, dict[int, GroupOffset]]:
    """As a document keeps them."""
    found: dict[str, dict[int, GroupOffset]] = {}
    for lane in sorted(offsets):
        found.setdefault(lane.topic, {})[lane.partition] = offsets[lane]
    return found
