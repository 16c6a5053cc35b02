"""What is each committed offset on the other side? Translated once, and again only while it may still improve.

A round has many groups, and most of them stand where they stood a moment ago. So translations are remembered by lane
and offset, for all groups alike; only what is news, or lay ahead of the replication, costs a read of its lane's head.

The order of the reads is part of the answer: the groups' commits first (the caller's), then the ends of the remote
partitions, then the heads. See `OffsetMap.upstream` for why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import Direction
from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.lanes.gaps import GapRange, Look
from mirrorless.ports.kafka import Deadline, LogEnds, TopicPartition
from mirrorless.ports.stores import Chains
from mirrorless.protocol.translate import OffsetMap, Translation, TranslationState
from mirrorless.run import Run
from mirrorless.scheduled.parallel_reads import side_by_side

TAIL: Final = 500
"""Upstream offsets behind a lane's position that are looked through for records."""

Spot = tuple[Direction, Lane, int]
"""An offset that some group has committed: which way, on which lane, and the offset there."""

EndsOf = Callable[[Iterable[TopicPartition], Deadline], dict[TopicPartition, LogEnds]]


class SourceReader(Protocol):
    """Reads a little of the source's log."""

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> Mapping[TopicPartition, Look]:
        """See `gaps.SourceLog.look`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a spot is on the other side."""

    offset: int | None
    state: TranslationState
    head: Head
    """The lane's, when this was found."""
    stable_end: int | None = None
    looked: bool = False
    """Whether the source's log was looked at, behind the lane's position."""

    @property
    def settled(self) -> bool:
        """Whether the map itself gave the answer, and gives the same one for good."""
        return self.state in {"exact", "next_record"} and self.head.run is not None


@dataclass(slots=True, kw_only=True)
class GroupOffsets:
    """Translations of one flow, remembered until told otherwise."""

    chains: Chains
    place_on_source: Callable[[Lane], TopicPartition]
    place_on_target: Callable[[Lane], TopicPartition]
    source_ends: EndsOf
    target_ends: EndsOf
    source_log: SourceReader
    transactional: bool
    """Whether no record becomes visible before its run is prepared: what makes the stable end a witness."""
    from_earliest: bool
    """Whether the flow replicates topics from their first record on. Otherwise what lies before a lane's first record
    is not a gap but records that the target never gets."""
    _known: dict[Spot, Found] = field(default_factory=dict)

    def forget(self) -> None:
        """Translate everything anew: an operator may have reset a lane."""
        self._known.clear()

    def translate(self, spots: Iterable[Spot], deadline: Deadline) -> dict[Spot, Found]:
        """Every spot's offset on the other side.

        Raises:
            Retriable: the target or the store of chains does not answer.
        """
        wanted = set(spots)
        open_ones = sorted(spot for spot in wanted if spot not in self._known or not self._known[spot].settled)

        # 1. The ends, 2. the heads, 3. the map.
        returning = {lane for direction, lane, _ in open_ones if direction == "reverse"}
        ends = self._stable_ends(returning, deadline) if self.transactional else {}
        heads = self._heads({lane for _, lane, _ in open_ones})
        offset_map = OffsetMap(self.chains)

        def find(spot: Spot) -> Found:
            direction, lane, offset = spot
            head, end = heads[lane], ends.get(lane) if direction == "reverse" else None
            known = self._known.get(spot)
            if known is not None and (known.head, known.stable_end) == (head, end):
                return known
            if direction == "forward":
                found = offset_map.downstream(lane, offset, head=head)
                if found.state == "next_record" and self._before_the_first(lane, head, offset):
                    found = Translation(offset=found.offset, state="before_map")
            else:
                found = offset_map.upstream(lane, offset, head=head, stable_end=end)
            return _found(found, head, end)

        fresh = dict(zip(open_ones, side_by_side(find, open_ones), strict=True))
        fresh |= self._empty_lanes(fresh, deadline)
        fresh |= self._behind_markers(fresh, deadline)
        self._known = {spot: self._known[spot] for spot in wanted & self._known.keys()} | fresh
        return self._known

    def _before_the_first(self, lane: Lane, head: Head, offset: int) -> bool:
        """Whether a group stands before the place where the flow began with this lane."""
        if self.from_earliest or head.generation > 0:
            return False
        first = next(iter(self.chains.after(lane, head.generation, -1, limit=1)), None)
        return isinstance(first, Run) and bool(first.spans) and offset < first.spans[0].upstream

    def _heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        ordered = sorted(lanes)
        read = side_by_side(lambda lane: self.chains.heads([lane])[lane], ordered)
        return dict(zip(ordered, read, strict=True))

    def _stable_ends(self, lanes: Iterable[Lane], deadline: Deadline) -> dict[Lane, int]:
        places = {lane: self.place_on_target(lane) for lane in lanes}
        ends = self.target_ends(places.values(), deadline) if places else {}
        return {lane: ends[place][1] for lane, place in places.items() if place in ends}

    def _empty_lanes(self, fresh: Mapping[Spot, Found], deadline: Deadline) -> dict[Spot, Found]:
        """Groups that stand on an empty partition: nothing was replicated because there is nothing.

        Such a group goes on at the beginning of the remote partition, as long as that is empty too. Asked after the
        head was read, so whatever has been replicated since stands at that beginning, or after it.
        """
        bare = [spot for spot, found in fresh.items() if spot[0] == "forward" and found.offset is None]
        if not bare:
            return {}
        there = self.target_ends({self.place_on_target(lane) for _, lane, _ in bare}, deadline)
        begun = {self.place_on_source(lane) for _, lane, offset in bare if offset > 0 or not self.from_earliest}
        here: Mapping[TopicPartition, LogEnds] = {}
        if begun:
            try:
                here = self.source_ends(begun, deadline)
            except Retriable:
                here = {}  # told by whoever read the groups of the source; these spots stay as they are
        empty: dict[Spot, Found] = {}
        for spot in bare:
            _, lane, offset = spot
            start, _, high = there.get(self.place_on_target(lane), (0, 0, -1))
            source_start, _, source_high = here.get(self.place_on_source(lane), (0, 0, -1))
            if start == high and ((offset == 0 and self.from_earliest) or source_start == source_high):
                empty[spot] = _found(Translation(offset=high, state="exact"), fresh[spot].head, None)
        return empty

    def _behind_markers(self, fresh: Mapping[Spot, Found], deadline: Deadline) -> dict[Spot, Found]:
        """Groups that stand behind a transaction's marker at the end of the source's log.

        No event brings a marker, so the lane's position stays before it, and the group seems to be ahead for ever.
        Where lane and group have come to rest, a read_committed look tells whether there is any record in between. A
        run that knows nothing yet looks at once, or it would take back what the run before has found out.
        """
        tails = {
            spot: (found.head.position, spot[2])
            for spot, found in fresh.items()
            if (found is self._known.get(spot) or not self._known)
            and spot[0] == "forward"
            and found.state == "ahead_of_replication"
            and not found.looked
            and not found.head.in_doubt
            and spot[2] - found.head.position <= TAIL
        }
        if not tails:
            return {}
        ranges: dict[TopicPartition, GapRange] = {}
        for (_, lane, _), tail in tails.items():
            ranges[self.place_on_source(lane)] = max(tail, ranges.get(self.place_on_source(lane), tail))
        try:
            looks = self.source_log.look(
                {place: [tail] for place, tail in ranges.items()}, committed=True, deadline=deadline
            )
        except Retriable:
            return {}  # told by whoever read the groups of the source; nothing is claimed of what cannot be seen
        seen: dict[Spot, Found] = {}
        for spot, (_, end) in tails.items():
            look = looks.get(self.place_on_source(spot[1]))
            if look is None:
                continue
            if any(offset < end for offset in look.visible):
                seen[spot] = replace(fresh[spot], looked=True)
            elif look.until >= end:
                seen[spot] = replace(fresh[spot], looked=True, state="exact")
        return seen


def _found(translation: Translation, head: Head, stable_end: int | None) -> Found:
    return Found(offset=translation.offset, state=translation.state, head=head, stable_end=stable_end)
