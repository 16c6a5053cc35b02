"""The translation of committed offsets to the other side: once each, and again only while it may still change.

A round has many groups, and most of their offsets are those of the round before. So translations are cached by lane and
offset, for all groups alike; only an offset that is new, or ahead of the replication, costs a read of its lane's head.

The order of the reads matters: the groups' commits first (the caller's), then the ends of the remote partitions, then
the heads. See `OffsetMap.upstream` for the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import CommittedOffsets, Direction, GroupCheckpoints, GroupOffset, TranslatedGroup
from mirrorless.lane import SLICE_LANES, Lane
from mirrorless.lane_state import Head
from mirrorless.lanes.gaps import GapRange, Look
from mirrorless.ports.kafka import Deadline, LogEnds, TopicPartition
from mirrorless.ports.stores import Chains
from mirrorless.protocol.translate import OffsetMap, Translation, TranslationState
from mirrorless.run import Run
from mirrorless.scheduled.rate_limit import in_parallel

TAIL: Final = 500
"""Upstream offsets after a lane's position that are searched for records, at most."""

CommittedOffset = tuple[Direction, Lane, int]
"""A committed offset: direction, lane, and the offset on the side where it was read."""

EndsOf = Callable[[Iterable[TopicPartition], Deadline], dict[TopicPartition, LogEnds]]


class SourceReader(Protocol):
    """Short reads of the source's log."""

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> Mapping[TopicPartition, Look]:
        """See `gaps.SourceLog.look`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedOffset:
    """A committed offset on the other side."""

    offset: int | None
    state: TranslationState
    head: Head
    """The lane's, at the time of the translation."""
    stable_end: int | None = None
    searched: bool = False
    """Whether the source's log was searched after the lane's position."""

    @property
    def settled(self) -> bool:
        """Whether it comes from the map alone, and is final."""
        return self.state in {"exact", "next_record"} and self.head.run is not None


@dataclass(slots=True, kw_only=True)
class OffsetTranslator:
    """Cached translations of one flow."""

    chains: Chains
    source_partition: Callable[[Lane], TopicPartition]
    remote_partition: Callable[[Lane], TopicPartition]
    source_ends: EndsOf
    target_ends: EndsOf
    source_log: SourceReader
    transactional: bool
    """Whether no record becomes visible before its run is prepared: only then does the stable end prove anything."""
    from_earliest: bool
    """Whether the flow replicates topics from their first record on. Otherwise the offsets before a lane's first record
    are not a gap but records that the target never gets."""
    slices_read: int = 0
    """Of the last translation: slices whose heads were read, each some read unit."""
    _cache: dict[CommittedOffset, TranslatedOffset] = field(default_factory=dict)

    def forget(self) -> None:
        """Drop the cache: an operator may have reset a lane."""
        self._cache.clear()

    def translate(
        self, offsets: Iterable[CommittedOffset], deadline: Deadline
    ) -> Mapping[CommittedOffset, TranslatedOffset]:
        """Translate committed offsets.

        Raises:
            Retriable: the target or the store of chains does not answer.
        """
        wanted = set(offsets)
        unsettled = sorted(each for each in wanted if each not in self._cache or not self._cache[each].settled)

        # 1. The ends, 2. the heads, 3. the map.
        returning = {lane for direction, lane, _ in unsettled if direction == "reverse"}
        ends = self._stable_ends(returning, deadline) if self.transactional else {}
        lanes = sorted({lane for _, lane, _ in unsettled})
        self.slices_read = len({(lane.topic, lane.partition // SLICE_LANES) for lane in lanes})
        heads = self.chains.heads(lanes)
        offset_map = OffsetMap(self.chains)

        def find(committed: CommittedOffset) -> TranslatedOffset:
            direction, lane, offset = committed
            head, end = heads[lane], ends.get(lane) if direction == "reverse" else None
            cached = self._cache.get(committed)
            if cached is not None and (cached.head, cached.stable_end) == (head, end):
                return cached
            if direction == "forward":
                found = offset_map.downstream(lane, offset, head=head)
                if found.state == "next_record" and self._before_the_first(lane, head, offset):
                    found = Translation(offset=found.offset, state="before_map")
            else:
                found = offset_map.upstream(lane, offset, head=head, stable_end=end)
            return TranslatedOffset(offset=found.offset, state=found.state, head=head, stable_end=end)

        fresh = dict(zip(unsettled, in_parallel(find, unsettled), strict=True))
        fresh |= self._empty_lanes(fresh, deadline)
        fresh |= self._behind_markers(fresh, deadline)
        self._cache = {each: self._cache[each] for each in wanted & self._cache.keys()} | fresh
        return self._cache

    def _before_the_first(self, lane: Lane, head: Head, offset: int) -> bool:
        """Whether an offset lies before the first record that the flow replicated of this lane."""
        if self.from_earliest or head.generation > 0:
            return False
        first = next(iter(self.chains.after(lane, head.generation, -1, limit=1)), None)
        return isinstance(first, Run) and bool(first.spans) and offset < first.spans[0].upstream

    def _stable_ends(self, lanes: Iterable[Lane], deadline: Deadline) -> dict[Lane, int]:
        remote = {lane: self.remote_partition(lane) for lane in lanes}
        ends = self.target_ends(remote.values(), deadline) if remote else {}
        return {lane: ends[partition][1] for lane, partition in remote.items() if partition in ends}

    def _empty_lanes(
        self, fresh: Mapping[CommittedOffset, TranslatedOffset], deadline: Deadline
    ) -> dict[CommittedOffset, TranslatedOffset]:
        """Translate the offsets on empty partitions, which have no map because there is nothing to replicate.

        Such a group resumes at the start of the remote partition, as long as that is empty too. The remote partition
        is read after the head, so whatever has been replicated since lies at that start, or after it.
        """
        unmapped = [each for each, found in fresh.items() if each[0] == "forward" and found.offset is None]
        if not unmapped:
            return {}
        there = self.target_ends({self.remote_partition(lane) for _, lane, _ in unmapped}, deadline)
        begun = {self.source_partition(lane) for _, lane, offset in unmapped if offset > 0 or not self.from_earliest}
        here: Mapping[TopicPartition, LogEnds] = {}
        if begun:
            try:
                here = self.source_ends(begun, deadline)
            except Retriable:
                here = {}  # the read of the source's groups has reported it; these offsets keep their state
        empty: dict[CommittedOffset, TranslatedOffset] = {}
        for each in unmapped:
            _, lane, offset = each
            start, _, high = there.get(self.remote_partition(lane), (0, 0, -1))
            source_start, _, source_high = here.get(self.source_partition(lane), (0, 0, -1))
            if start == high and ((offset == 0 and self.from_earliest) or source_start == source_high):
                empty[each] = TranslatedOffset(offset=high, state="exact", head=fresh[each].head)
        return empty

    def _behind_markers(
        self, fresh: Mapping[CommittedOffset, TranslatedOffset], deadline: Deadline
    ) -> dict[CommittedOffset, TranslatedOffset]:
        """Translate the offsets that lie after a transaction's marker at the end of the source's log.

        No event contains a marker, so the lane's position stays before it, and the group seems to be ahead for ever.
        Where lane and group stand still, a read_committed read shows whether there is any record in between. A run
        with an empty cache reads at once, or it would take back what the run before has found.
        """
        tails = {
            each: (found.head.position, each[2])
            for each, found in fresh.items()
            if (found is self._cache.get(each) or not self._cache)
            and each[0] == "forward"
            and found.state == "ahead_of_replication"
            and not found.searched
            and not found.head.in_doubt
            and each[2] - found.head.position <= TAIL
        }
        if not tails:
            return {}
        ranges: dict[TopicPartition, GapRange] = {}
        for (_, lane, _), tail in tails.items():
            partition = self.source_partition(lane)
            ranges[partition] = max(tail, ranges.get(partition, tail))
        try:
            looks = self.source_log.look(
                {partition: [tail] for partition, tail in ranges.items()}, committed=True, deadline=deadline
            )
        except Retriable:
            return {}  # the read of the source's groups has reported it; these offsets keep their state
        searched: dict[CommittedOffset, TranslatedOffset] = {}
        for each, (_, end) in tails.items():
            look = looks.get(self.source_partition(each[1]))
            if look is None:
                continue
            if any(offset < end for offset in look.visible):
                searched[each] = replace(fresh[each], searched=True)
            elif look.until >= end:
                searched[each] = replace(fresh[each], searched=True, state="exact")
        return searched


def offsets_of(direction: Direction, committed: CommittedOffsets) -> set[CommittedOffset]:
    """The committed offsets of one direction, without their groups."""
    return {
        (direction, lane, each.offset)
        for offsets in committed.here(direction).values()
        for lane, each in offsets.items()
    }


def translated_groups(
    direction: Direction,
    committed: CommittedOffsets,
    translations: Mapping[CommittedOffset, TranslatedOffset],
    previous: Callable[[Direction, str], GroupCheckpoints | None],
) -> list[TranslatedGroup]:
    """Every group of a direction that has committed on a lane of the flow.

    Args:
        direction: of the move.
        committed: as read at the start of the round.
        translations: of all of these offsets.
        previous: a group's document of the round before.
    """
    groups = []
    there = committed.there(direction)
    for name, commits in sorted(committed.here(direction).items()):
        if not commits:
            continue
        offsets, ahead = {}, 0
        for lane, commit in commits.items():
            found = translations[direction, lane, commit.offset]
            if direction == "forward":
                offsets[lane] = GroupOffset(commit.offset, found.offset, found.state, commit.metadata)
                ahead += max(0, commit.offset - found.head.position)
            else:
                offsets[lane] = GroupOffset(found.offset, commit.offset, found.state, commit.metadata)
        groups.append(
            TranslatedGroup(
                name=name,
                direction=direction,
                previous=previous(direction, name),
                offsets=offsets,
                ahead=ahead,
                there=there.get(name, {}),
                exists_there=name in there,
            )
        )
    return groups
