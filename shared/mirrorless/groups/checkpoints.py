"""The values of a checkpoint round, and its pure decisions.

Forward, a group reads the source and may move to the target; reverse, it reads the target and may move back. `here` is
the side where a group's offsets were read, `there` is the other side:

    forward   here = source, upstream offset     ->  there = target, downstream offset
    reverse   here = target, downstream offset   ->  there = source, upstream offset

Five rules protect group offsets, whoever writes them:

1. Never backwards: an offset is written only where the group has none, or a lower one.
2. Never under live members: a group is written only on a side where it has no members.
3. Each commit is carried over once. An offset that one side got from the other is not carried back, so the two
   directions do not echo each other, and an operator's rewind of a group without members is not undone.
4. Not over another application's: a group's offset on the target is replaced only if this flow committed it or carried
   it back; see `ownership`. Where one of a group is not the flow's own, none is written.
5. Not where members have just left: they may be restarting, and come back. So commits wait for a grace period where
   rounds have seen members, or have found a group that this flow did not make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from mirrorless.chain.lane import FlowName, Lane, by_lane
from mirrorless.flow.naming import bounded
from mirrorless.mm2.internal_records import Checkpoint
from mirrorless.ports.kafka import GroupState, OffsetAndMetadata
from mirrorless.protocol.translate import TranslationState

Direction = Literal["forward", "reverse"]

Readiness = Literal[
    "active_on_target",
    "active_on_source",
    "before_map",
    "map_lost",
    "independent",
    "ahead_on_target",
    "ahead_on_source",
    "out_of_range",
    "ahead_of_replication",
    "behind",
    "ready",
    "excluded",
]
"""
active_on_target      the group already has members there (forward)
active_on_source      the same, in reverse
before_map            one of its offsets lies below the oldest run of the map: it has no exact translation
map_lost              one of its lanes is stopped, for the map describes records that are gone: its offset there is not
                      known, and what this flow has committed there may be wrong
independent           an offset of it there is not this flow's but another application's, or one that it reached itself;
                      none of its offsets there is written (forward)
ahead_on_target       its offsets there are beyond its offsets here, as after a rewind here: it would skip records
ahead_on_source       the same in reverse, where this flow committed its offsets on the source
out_of_range          one of its offsets lies beyond the end of the source's log, or on a partition that is not there:
                      its consumer begins where its `auto.offset.reset` says, here as there (forward)
ahead_of_replication  it has read records that are not on the other side yet; it would read them again
behind                its offsets there are older than its offsets here: it would read `reread` records again
ready                 it would resume exactly where it is
excluded              the flow's filter excludes it; no document is kept
"""

AHEAD: Final = frozenset({"ahead_on_target", "ahead_on_source"})
"""Readiness of groups that would skip records."""

Numbers = dict[str, dict[int, int]]
"""A number by source topic and partition."""

OwnOffsets = Mapping[Lane, tuple[int, ...]]
"""Offsets on the other side that this flow committed last, or carried back, by lane: two at most. The older one is
kept because a commit is recorded before it is made, and may fail."""

GroupPositions = Mapping[str, Mapping[Lane, OffsetAndMetadata]]
"""Committed offsets by group and lane."""


OffsetState = Literal[TranslationState, "out_of_range", "gone"]
"""
out_of_range   the offset lies beyond the end of the source's log
gone           the source has no such partition
"""

GROUP_BYTES: Final = 900
"""Of a group's name in a key. Kafka takes 32,767 of a name; DynamoDB takes 1,024 of a key, prefix and part included."""


def document_key(direction: Direction, group: str) -> str:
    """Return the key of a group's document: `forward/<group>` or `reverse/<group>`."""
    return f"{direction}/{bounded(group, GROUP_BYTES)}"


class GroupOffset(msgspec.Struct, frozen=True, array_like=True):
    """One offset of a group on both sides; in JSON `[upstream, downstream, state, metadata, bound]`."""

    upstream: int | None
    """None without a translation (reverse, without a map)."""
    downstream: int | None
    """None without a translation (forward, without a map)."""
    state: OffsetState
    metadata: str = ""
    bound: int = 0
    """See `Translation.bound`."""

    @property
    def usable(self) -> bool:
        """Whether a consumer may resume there without missing a record. `before_map` would skip expired records."""
        translated = self.upstream is not None and self.downstream is not None
        return translated and self.state in {"exact", "next_record", "approximate", "ahead_of_replication"}

    @property
    def final(self) -> bool:
        """Whether later replication cannot change it."""
        return self.state in {"exact", "next_record", "approximate"}


class GroupCheckpoints(msgspec.Struct, frozen=True):
    """The result of a round for one group in one direction; see `document_key`."""

    group: str
    direction: Direction
    at: int
    """When this was found, ms since the epoch; an unchanged document is not written again."""
    readiness: Readiness
    offsets: dict[str, dict[int, GroupOffset]]
    """By source topic, in both directions, and partition."""
    by: Literal["group", "checkpoint"] = "checkpoint"
    """Where a consumer would find its offsets there: in the group's own commits there, or in the checkpoints."""
    reread: int = 0
    """Records that a consumer would read again over there, exactly, or at most where an offset is approximate; not
    counting `ahead`."""
    skip: int = 0
    """Records that a consumer would skip over there, exactly."""
    ahead: int = 0
    """Upstream offsets that the group has read and that are not replicated yet."""
    carried: Numbers = {}
    """The group's offset here that the group there has received, or did not need."""
    own: dict[str, dict[int, tuple[int, ...]]] | None = None
    """See `OwnOffsets`; None in a document of a version before it."""
    left_at: int | None = 0
    """When its members had left there, as far as a round could see, ms since the epoch; 0 if none has ever seen any;
    None while it has some, or may have."""
    emitted: bool = msgspec.field(default=True, name="told")
    """Whether the checkpoints topic has all of this; otherwise all of it is emitted again."""

    @property
    def key(self) -> str:
        """The key of the document."""
        return document_key(self.direction, self.group)

    def lanes(self, flow: FlowName) -> Iterator[tuple[Lane, GroupOffset]]:
        """Every offset of the group, with its lane."""
        yield from by_lane(flow, self.offsets).items()

    def carried_offset(self, lane: Lane) -> int | None:
        """The offset here that was carried over last; None for none."""
        return self.carried.get(lane.topic, {}).get(lane.partition)

    @property
    def needs_operator(self) -> bool:
        """Whether no further round makes it ready, or it would skip records from this flow's own offsets."""
        return self.readiness in {"before_map", "map_lost"} or (self.readiness in AHEAD and bool(self.own))

    def own_offsets(self, flow: FlowName) -> dict[Lane, tuple[int, ...]]:
        """The offsets there that are this flow's own.

        A version before kept none. Its last one is where it carried the group to.
        """
        if self.own is not None:
            return by_lane(flow, self.own)
        found: dict[Lane, tuple[int, ...]] = {}
        for lane, offset in self.lanes(flow):
            here, there = here_and_there(self.direction, offset)
            if there is not None and here is not None and self.carried_offset(lane) == here:
                found[lane] = (there,)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffsets:
    """The offsets that the flow's groups have committed on both sides, as read at the start of a round."""

    source: GroupPositions
    """Those of the last successful read where the source does not answer."""
    target: GroupPositions
    source_answered: bool

    def here(self, direction: Direction) -> GroupPositions:
        """The offsets to translate."""
        return self.source if direction == "forward" else self.target

    def there(self, direction: Direction) -> GroupPositions:
        """The offsets on the other side; empty where it does not answer."""
        if direction == "forward":
            return self.target
        return self.source if self.source_answered else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedGroup:
    """One group in one direction, with its offsets translated."""

    name: str
    direction: Direction
    previous: GroupCheckpoints | None
    """The document of the round before."""
    offsets: Mapping[Lane, GroupOffset]
    ahead: int
    """See `GroupCheckpoints.ahead`."""
    reread: int = 0
    """Records that it reads again over there wherever it goes on, because both clusters have records of their own."""
    there: Mapping[Lane, OffsetAndMetadata]
    """Its commits on the other side."""
    exists_there: bool
    """Whether the other side lists the group at all."""
    own: OwnOffsets = field(default_factory=dict)
    """Its offsets there that are this flow's, from the rounds before."""


def left_at(group: TranslatedGroup, state: GroupState | None, now: int) -> int | None:
    """See `GroupCheckpoints.left_at`.

    Args:
        group: with its document of the round before.
        state: of the group there; None where the cluster does not answer.
        now: ms since the epoch.
    """
    before = 0 if group.previous is None else group.previous.left_at
    if state == "active":
        return None
    if state is None:
        return None if before != 0 else 0
    # On the source, a group is there because it reads there.
    made_by_members = group.direction == "forward" and state == "empty" and not group.own
    return now if before is None or (before == 0 and made_by_members) else before


def translated_by_name(direction: Direction, groups: Iterable[TranslatedGroup]) -> dict[str, TranslatedGroup]:
    """The groups of one direction, by name."""
    return {group.name: group for group in groups if group.direction == direction}


def here_and_there(direction: Direction, offset: GroupOffset) -> tuple[int | None, int | None]:
    """The offset on the side where the group's commits were read, and the one on the other side."""
    return (offset.upstream, offset.downstream) if direction == "forward" else (offset.downstream, offset.upstream)


def checkpoints_to_emit(
    direction: Direction, group: str, new: Mapping[Lane, GroupOffset], last: GroupCheckpoints | None
) -> dict[Lane, Checkpoint]:
    """The checkpoints of a group that the checkpoints topic does not have yet, with the source's topic names.

    They are exact, so the offset there goes down only when the group was rewound here; that is emitted too. An offset
    that is not usable gets no checkpoint, and the one before it stands (MM2: a translation of -1 is skipped).
    In a checkpoint `upstream` is the offset here and `downstream` the one there, in either direction.

    Args:
        direction: of the move.
        group: its name.
        new: its offsets in this round.
        last: its document of the round before.
    """
    emitted = last.offsets if last is not None and last.emitted else {}
    found = {}
    for lane, offset in new.items():
        before = emitted.get(lane.topic, {}).get(lane.partition)
        here, there = here_and_there(direction, offset)
        if here is None or there is None or not offset.usable:
            continue
        if before is None or not before.usable or not _same_checkpoint(before, offset):
            found[lane] = Checkpoint(
                group=group,
                topic=lane.topic,
                partition=lane.partition,
                upstream=here,
                downstream=there,
                metadata=offset.metadata,
            )
    return found


def _same_checkpoint(one: GroupOffset, other: GroupOffset) -> bool:
    """Whether two offsets make the same checkpoint; the state may differ."""
    return (one.upstream, one.downstream, one.metadata) == (other.upstream, other.downstream, other.metadata)


def offsets_to_commit(
    direction: Direction,
    new: Mapping[Lane, GroupOffset],
    last: GroupCheckpoints | None,
    committed_there: Mapping[Lane, OffsetAndMetadata],
) -> dict[Lane, OffsetAndMetadata]:
    """The offsets to commit on the other side for a group without members there.

    Args:
        direction: of the move.
        new: its offsets in this round.
        last: its document of the round before, with what was carried over.
        committed_there: its commits on the other side.
    """
    writes = {}
    for lane, offset in new.items():
        here, there = here_and_there(direction, offset)
        if there is None or not offset.usable:
            continue
        committed = committed_there.get(lane)
        is_new = last is None or last.carried_offset(lane) != here
        if committed is None or (is_new and committed.offset < there):
            writes[lane] = OffsetAndMetadata(there, offset.metadata)
    return writes


def carried_over(
    direction: Direction,
    new: Mapping[Lane, GroupOffset],
    last: GroupCheckpoints | None,
    committed_there: Mapping[Lane, OffsetAndMetadata],
) -> dict[Lane, int]:
    """The offsets here that the group there has reached or passed, without those whose translation may still change.

    Args:
        direction: of the move.
        new: its offsets in this round.
        last: its document of the round before, with what was carried over.
        committed_there: its commits on the other side, after this round's.
    """
    carried: dict[Lane, int] = {}
    for lane, offset in new.items():
        here, there = here_and_there(direction, offset)
        committed = committed_there.get(lane)
        number = last.carried_offset(lane) if last is not None else None
        reached = committed is not None and there is not None and committed.offset >= there
        if offset.final and here is not None and reached:
            number = here
        if number is not None:
            carried[lane] = number
    return carried
