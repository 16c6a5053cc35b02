"""The translation of committed offsets to the other side: once each, and again only while it may still change.

A round has many groups, and most of their offsets are those of the round before. So translations are cached by lane and
offset, for all groups alike; only an offset that is new, or ahead of the replication, costs a read of its lane's head.

The order of the reads matters: the groups' commits first (the caller's), then the ends of the remote partitions, then
the heads. See `OffsetMap.upstream` for the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from mirrorless.chain.lane import JOURNAL_LANES, Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.groups.checkpoints import (
    CommittedOffsets,
    Direction,
    GroupCheckpoints,
    GroupOffset,
    OffsetState,
    TranslatedGroup,
    here_and_there,
)
from mirrorless.groups.clusters import Sides
from mirrorless.lanes.gaps import GapRange, LogLooks, Look
from mirrorless.ports.kafka import LogEnds, TopicPartition
from mirrorless.ports.stores import Chains
from mirrorless.protocol.map_reads import MapReads
from mirrorless.protocol.past import PastStore
from mirrorless.protocol.translate import OffsetMap, OneWay, Translation, TwoWayPlace, place_there
from mirrorless.scheduled.scope import FlowScope

TAIL: Final = 500
"""Upstream offsets after a lane's position that are searched for records, at most."""

BESIDE_THE_LOG: Final = frozenset({"out_of_range", "gone"})
"""States of offsets beyond the end of a log, or on a partition that is not there."""

CommittedOffset = tuple[Direction, Lane, int]
"""A committed offset: direction, lane, and the offset on the side where it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedOffset:
    """A committed offset on the other side."""

    offset: int | None
    state: OffsetState
    head: Head
    """The lane's, at the time of the translation."""
    stable_end: int | None = None
    searched: bool = False
    """Whether the source's log was searched after the lane's position."""
    back: Head | None = None
    """Of the counterpart's lane, where the clusters replicate to each other."""
    two_way: TwoWayPlace | None = None
    """The same: how the offset was found."""
    unseen: bool = False
    """The same: whether the counterpart's map did not answer."""
    in_range: bool = False
    """Whether the source's log was seen to reach up to it."""
    bound: int = 0
    """See `Translation.bound`."""
    unasked: bool = False
    """Whether the source might have said more, and did not answer. Not kept."""

    @property
    def beside_the_log(self) -> bool:
        """Whether it lies where the source has no log."""
        return self.state in BESIDE_THE_LOG

    @property
    def settled(self) -> bool:
        """Whether it comes from the map alone, and is final."""
        known = self.head.run is not None or self.two_way is not None
        return self.state in {"exact", "next_record", "approximate"} and known

    def out_head(self, direction: Direction) -> Head:
        """The head of the lane that carries records to the other side."""
        return self.head if direction == "forward" or self.back is None else self.back

    @property
    def reread(self) -> int:
        """Records from there on that the group has read here already: some where clusters replicate to each other.

        At most so many where it is approximate.
        """
        return self.bound if self.two_way is None else self.two_way.reread


@dataclass(slots=True, kw_only=True)
class OffsetTranslator:
    """Cached translations of one flow."""

    chains: MapReads
    past: PastStore
    scope: FlowScope
    sides: Sides
    source_log: LogLooks
    transactional: bool
    """Whether no record becomes visible before its run is prepared: only then does the stable end prove anything."""
    target_log: LogLooks | None = None
    """With a counterpart: the target's log, which is read as the source's is."""
    counterpart: Chains | None = None
    """Of the flow in the other direction, where both keep the names of topics; see `mirrorless.protocol.translate`."""
    from_earliest: bool
    """Whether the flow replicates topics from their first record on. Otherwise the offsets before a lane's first record
    are not a gap but records that the target never gets."""
    at_source: Callable[[Callable[[Deadline], Any], Deadline], Any]
    """How the source's logs and its region are asked: see `Sides.ask_source_log`."""
    answered: bool = True
    """Whether the counterpart's map has answered in the last translation."""
    trouble: str = ""
    """Why it has not."""
    log_trouble: str = ""
    """Why a log was not asked in the last translation: what rests on the answer keeps the state that the map gives."""
    journals_read: int = 0
    """Of the last translation: journals whose heads were read, each some read unit."""
    _cache: dict[CommittedOffset, TranslatedOffset] = field(default_factory=dict)
    _partitions: Mapping[str, int] | None = None
    """Of the source's topics, as first listed since the cache was dropped."""
    _unasked: set[CommittedOffset] = field(default_factory=set)
    """Of the last translation."""

    def forget(self) -> None:
        """Drop the cache: an operator may have reset a lane."""
        self._cache.clear()
        self._partitions = None

    def translate(
        self, offsets: Iterable[CommittedOffset], deadline: Deadline
    ) -> Mapping[CommittedOffset, TranslatedOffset]:
        """Translate committed offsets.

        Raises:
            Retriable: the target or the store of chains does not answer.
        """
        self.log_trouble = ""
        self._unasked.clear()
        wanted = set(offsets)
        untrue = self.chains.untrue({lane for _, lane, _ in wanted})
        unsettled = sorted(
            each
            for each in wanted
            if (known := self._cache.get(each)) is None
            or not known.settled
            or known.head.untrue_from != untrue.get(each[1])
        )

        # 1. The ends, 2. the heads, 3. the map.
        if self.counterpart is not None:
            fresh = self._both_ways(unsettled, self.counterpart, deadline)
            return self._completed(wanted, fresh, deadline)
        returning = {lane for direction, lane, _ in unsettled if direction == "reverse"}
        ends = self._stable_ends(returning, deadline) if self.transactional else {}
        lanes = sorted({lane for _, lane, _ in unsettled})
        self.journals_read = len({(lane.topic, lane.partition // JOURNAL_LANES) for lane in lanes})
        heads = self.chains.heads(lanes)
        offset_map = OffsetMap(self.chains, self.past)

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
            return TranslatedOffset(
                offset=found.offset, state=found.state, bound=found.bound, head=head, stable_end=end
            )

        fresh = dict(zip(unsettled, in_parallel(find, unsettled), strict=True))
        return self._completed(wanted, fresh, deadline)

    def _completed(
        self, wanted: set[CommittedOffset], fresh: dict[CommittedOffset, TranslatedOffset], deadline: Deadline
    ) -> Mapping[CommittedOffset, TranslatedOffset]:
        """All translations: what the maps have found, and what only the logs say."""
        still = {each for each, found in fresh.items() if self._stands_still(each, found)}
        fresh |= self._at_the_ends(fresh, still, deadline)
        fresh |= self._behind_markers(fresh, still, deadline)
        found = {each: self._cache[each] for each in wanted & self._cache.keys()} | fresh
        self._cache = found | self._gone(found, deadline)
        return self._cache | {each: replace(self._cache[each], unasked=True) for each in self._unasked}

    def _gone(
        self, found: Mapping[CommittedOffset, TranslatedOffset], deadline: Deadline
    ) -> dict[CommittedOffset, TranslatedOffset]:
        """The offsets on partitions that the source does not have, whatever the map knows of those."""
        if self._partitions is None and any(direction == "forward" for direction, *_ in found):
            try:
                self._partitions = self.at_source(self.sides.source.topics.partitions, deadline)
            except Retriable as exc:
                self.log_trouble = exc.what
        counts = self._partitions
        if counts is None:
            self._unasked |= {each for each in found if each[0] == "forward"}
            return {}
        gone = dict[CommittedOffset, TranslatedOffset]()
        for each, at in found.items():
            topic, partition = self.scope.source_partition(each[1])
            if each[0] == "forward" and partition >= counts.get(topic, 0):
                gone[each] = replace(at, offset=None, state="gone")
        return gone

    def _both_ways(
        self, unsettled: list[CommittedOffset], counterpart: Chains, deadline: Deadline
    ) -> dict[CommittedOffset, TranslatedOffset]:
        """Translate by the maps of both flows. Where the other one does not answer, offsets are not translated.

        The lane that carries records to the other side is read last: its copies that come after that are unread there,
        and the lane of the other flow, read before, has not passed them.

        Raises:
            Retriable: the target or the flow's own map does not answer.
        """
        lanes = sorted({lane for _, lane, _ in unsettled})
        backward = {lane: Lane(lane.flow.turned, lane.topic, lane.partition) for lane in lanes}
        self.journals_read = 3 * len({(lane.topic, lane.partition // JOURNAL_LANES) for lane in lanes})
        ends: dict[Direction, Mapping[Lane, int]] = {"reverse": self._stable_ends(lanes, deadline)}
        places = {self.scope.source_partition(lane): lane for lane in lanes}
        backs: Mapping[Lane, Head] = {}
        before = self.chains.heads(lanes)

        def at_source(limit: Deadline) -> tuple[Mapping[TopicPartition, LogEnds], Mapping[Lane, Head]]:
            return self.sides.source.topics.ends(places, limit), counterpart.heads(backward.values())

        self.answered = True
        try:
            here, backs = self.at_source(at_source, deadline) if places else ({}, {})
            ends["forward"] = {places[place]: found[1] for place, found in here.items()}
        except Retriable as exc:
            self.answered, self.trouble = False, exc.what
        heads = self.chains.heads(lanes)

        def find(committed: CommittedOffset) -> TranslatedOffset:
            direction, lane, offset = committed
            head = (heads if direction == "forward" else before)[lane]
            back, end = backs.get(backward[lane]), ends.get(direction, {}).get(lane)
            unseen = TranslatedOffset(offset=None, state="no_map", head=head, unseen=True)
            if back is None:
                return unseen
            cached = self._cache.get(committed)
            if cached is not None and (cached.head, cached.back, cached.stable_end) == (head, back, end):
                return cached
            ours = OneWay.of(self.chains, lane, head)
            theirs = OneWay.of(counterpart, backward[lane], back)
            out, home = (ours, theirs) if direction == "forward" else (theirs, ours)
            try:
                place = place_there(out, home, offset, stable_end=end)
            except Retriable:
                return unseen
            return TranslatedOffset(
                offset=place.found.offset,
                state=place.found.state,
                head=head,
                stable_end=end,
                back=back,
                two_way=place,
            )

        return dict(zip(unsettled, in_parallel(find, unsettled), strict=True))

    def _before_the_first(self, lane: Lane, head: Head, offset: int) -> bool:
        """Whether an offset lies before the first record that the flow replicated of this lane."""
        if self.from_earliest or head.generation > 0:
            return False
        first = next(iter(self.chains.after(lane, head.generation, -1, limit=1)), None)
        return isinstance(first, Run) and bool(first.spans) and offset < first.spans[0].upstream

    def _stable_ends(self, lanes: Iterable[Lane], deadline: Deadline) -> dict[Lane, int]:
        remote = {lane: self.scope.remote_partition(lane) for lane in lanes}
        ends = self.sides.target.topics.ends(remote.values(), deadline) if remote else {}
        return {lane: ends[partition][1] for lane, partition in remote.items() if partition in ends}

    def _at_the_ends(
        self,
        fresh: Mapping[CommittedOffset, TranslatedOffset],
        still: Collection[CommittedOffset],
        deadline: Deadline,
    ) -> dict[CommittedOffset, TranslatedOffset]:
        """Translate the offsets on empty partitions, and find those that lie beyond the end of their log.

        An empty partition has no map because there is nothing to replicate. A group resumes at the start of the remote
        partition, as long as that is empty too. The remote partition is read after the head, so whatever has been
        replicated since lies at that start, or after it.
        """
        unmapped = [each for each, found in fresh.items() if each[0] == "forward" and found.state == "no_map"]
        ahead = [
            each
            for each, found in fresh.items()
            if each[0] == "forward" and found.state == "ahead_of_replication" and not found.in_range
            # A lane that moves will soon have passed what is near.
            if each in still or each[2] - found.head.position > TAIL
        ]
        if not unmapped and not ahead:
            return {}
        remote, on_source = self.scope.remote_partition, self.scope.source_partition
        there = self.sides.target.topics.ends({remote(lane) for _, lane, _ in unmapped}, deadline) if unmapped else {}
        begun = {on_source(lane) for _, lane, offset in unmapped if offset > 0 or not self.from_earliest}
        begun |= {on_source(lane) for _, lane, _ in ahead}
        here: Mapping[TopicPartition, LogEnds] = {}
        if begun:
            try:
                here = self.at_source(partial(self.sides.source.topics.ends, begun), deadline)
            except Retriable as exc:
                self.log_trouble = exc.what
                self._unasked |= {*unmapped, *ahead}
        known: dict[CommittedOffset, TranslatedOffset] = {}
        for each in (*unmapped, *ahead):
            _, lane, offset = each
            start, _, high = there.get(remote(lane), (0, 0, -1))
            source_start, _, source_high = here.get(on_source(lane), (0, 0, -1))
            if 0 <= source_high < offset:
                known[each] = replace(fresh[each], offset=None, state="out_of_range")
            elif fresh[each].state == "ahead_of_replication":
                known[each] = replace(fresh[each], in_range=source_high >= offset)
            elif start == high and ((offset == 0 and self.from_earliest) or source_start == source_high):
                known[each] = TranslatedOffset(offset=high, state="exact", head=fresh[each].head)
        return known

    def _stands_still(self, committed: CommittedOffset, found: TranslatedOffset) -> bool:
        """Whether an offset ahead of the replication is where it was, and its lane too; or this is the first look."""
        return found.state == "ahead_of_replication" and (found is self._cache.get(committed) or not self._cache)

    def _behind_markers(
        self,
        fresh: Mapping[CommittedOffset, TranslatedOffset],
        still: Collection[CommittedOffset],
        deadline: Deadline,
    ) -> dict[CommittedOffset, TranslatedOffset]:
        """Translate the offsets that lie after a transaction's marker at the end of the source's log.

        No event contains a marker, so the lane's position stays before it, and the group seems to be ahead for ever.
        Where lane and group stand still, a read_committed read shows whether there is any record in between. A run
        with an empty cache reads at once, or it would take back what the run before has found.
        """
        searched: dict[CommittedOffset, TranslatedOffset] = {}
        logs: dict[Direction, LogLooks | None] = {"forward": self.source_log, "reverse": self.target_log}
        for direction, log in logs.items():
            if log is not None:
                some = {each: fresh[each] for each in still if each[0] == direction}
                searched |= self._searched(direction, some, log, deadline)
        return searched

    def _searched(
        self,
        direction: Direction,
        fresh: Mapping[CommittedOffset, TranslatedOffset],
        log: LogLooks,
        deadline: Deadline,
    ) -> dict[CommittedOffset, TranslatedOffset]:
        """The same of one direction, by the log that the groups read."""
        partition_of = self.scope.source_partition if direction == "forward" else self.scope.remote_partition
        tails = {
            each: (head.position, each[2])
            for each, found in fresh.items()
            if found.state == "ahead_of_replication"
            and not found.searched
            and not (found.two_way is not None and found.two_way.lags)
            and not (head := found.out_head(each[0])).in_doubt
            and each[2] - head.position <= TAIL
        }
        if not tails:
            return {}
        ranges: dict[TopicPartition, GapRange] = {}
        for (_, lane, _), tail in tails.items():
            partition = partition_of(lane)
            ranges[partition] = max(tail, ranges.get(partition, tail))
        tails_of = {partition: [tail] for partition, tail in ranges.items()}

        def ask(limit: Deadline) -> Mapping[TopicPartition, Look]:
            return log.look(tails_of, committed=True, deadline=limit)

        try:
            looks = self.at_source(ask, deadline) if direction == "forward" else ask(deadline)
        except Retriable as exc:
            self.log_trouble = exc.what
            return {}
        searched: dict[CommittedOffset, TranslatedOffset] = {}
        for each, (_, end) in tails.items():
            look = looks.get(partition_of(each[1]))
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
        offsets, ahead, reread, before = {}, 0, 0, previous(direction, name)
        for lane, commit in commits.items():
            found = translations[direction, lane, commit.offset]
            reread += found.reread
            known = _known_before(direction, before, lane, commit.offset, found)
            if known is not None:
                offsets[lane] = known
            elif found.beside_the_log:
                offsets[lane] = GroupOffset(commit.offset, None, found.state, commit.metadata)
            elif direction == "forward":
                offsets[lane] = GroupOffset(commit.offset, found.offset, found.state, commit.metadata, found.bound)
                ahead += max(0, commit.offset - found.head.position)
            else:
                offsets[lane] = GroupOffset(found.offset, commit.offset, found.state, commit.metadata, found.bound)
        groups.append(
            TranslatedGroup(
                name=name,
                direction=direction,
                previous=before,
                offsets=offsets,
                ahead=ahead,
                reread=reread,
                there=there.get(name, {}),
                exists_there=name in there,
            )
        )
    return groups


def _known_before(
    direction: Direction, document: GroupCheckpoints | None, lane: Lane, offset: int, found: TranslatedOffset
) -> GroupOffset | None:
    """What a round before has found for the same committed offset, where this one could not ask.

    None for nothing that a consumer may use, and nothing that only a source's log says.
    """
    if document is None or not (found.unseen or found.unasked):
        return None
    before = document.offsets.get(lane.topic, {}).get(lane.partition)
    if before is None or here_and_there(direction, before)[0] != offset:
        return None
    return before if (found.unseen and before.usable) or before.state in BESIDE_THE_LOG else None
