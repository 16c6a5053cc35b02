"""The logs of a cluster in memory, for whoever reads by `mirrorless.ports.log.Log`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.lanes.gaps import GapRange, Look
from mirrorless.ports.kafka import RangesRead, TopicPartition
from mirrorless.ports.log import NOTHING_MORE, Arrivals
from mirrorless.protocol.outgoing import first_offset, following_offset
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable


def plain(offset: int) -> Record:
    """A record that says where it stands."""
    return Record(offset=offset, timestamp=offset, headers=[], key=None, value=b"%d" % offset)


@dataclass(slots=True)
class MemoryPartition:
    """The log of one partition."""

    content: list[Any] = field(default_factory=list)
    """Records that readers see, or whole batches of them, growing."""
    start: int = 0
    end: int = 0
    """The stable one."""
    shown: int | None = None
    """As far as a leader shows it that was just elected; it says the end to nobody yet where `silent`."""
    silent: bool = False
    damaged: BatchUnreadable | None = None
    refused: bool = False
    epoch_at: Callable[[int], int] = lambda _: 0
    """Of the leader that appended what stands at an offset."""


@dataclass(slots=True)
class MemoryLog:
    """Implements `Log`. Of each partition a few records come at a time."""

    partitions: dict[TopicPartition, MemoryPartition] = field(default_factory=dict)
    few: int = 2
    at: dict[TopicPartition, int] = field(default_factory=dict)
    """Where those that are followed are read next."""
    below: dict[TopicPartition, int] = field(default_factory=dict)
    told: dict[TopicPartition, int] = field(default_factory=dict)
    """Ends, each of which is returned once."""
    over: set[TopicPartition] = field(default_factory=set)
    """Of which nothing more comes."""
    closed: bool = False

    def partition(
        self, place: TopicPartition, *offsets: int, start: int = 0, end: int | None = None
    ) -> MemoryPartition:
        """Make a partition with records at these offsets."""
        end = max(offsets, default=-1) + 1 if end is None else end
        made = MemoryPartition([plain(offset) for offset in offsets], start, max(end, start))
        self.partitions[place] = made
        return made

    def append(self, place: TopicPartition, *offsets: int, seen: bool = True, marker: bool = False) -> None:
        """Write records; they are of a transaction that ended where a marker follows, and aborted if not `seen`."""
        own = self.partitions[place]
        own.content += [plain(offset) for offset in offsets if seen]
        own.end = offsets[-1] + 1 + marker

    def stable_ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `Log.stable_ends`."""
        return {place: own.end for place, own in self._asked(places)}

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `Log.starts`."""
        return {place: own.start for place, own in self._asked(places)}

    def _asked(self, places: Iterable[TopicPartition]) -> list[tuple[TopicPartition, MemoryPartition]]:
        there = [(place, self.own(place)) for place in places]
        return [(place, own) for place, own in there if own is not None and not own.silent]

    def own(self, place: TopicPartition) -> MemoryPartition | None:
        """The log of a partition."""
        return self.partitions.get(place)

    def due(self) -> Iterable[TopicPartition]:
        """Of which partitions something comes."""
        return list(self.at)

    def portion(self) -> int:
        """How many records, or batches, come of one."""
        return self.few

    def follow(self, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int] = NOTHING_MORE) -> None:
        """See `Log.follow`."""
        self.leave(offsets)
        self.at |= offsets
        self.below |= below
        self.closed = False

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """See `Log.leave`."""
        for place in places:
            for kept in (self.at, self.below, self.told):
                kept.pop(place, None)
            self.over.discard(place)

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """See `Log.arrivals`; time is passed by nobody."""
        assert seconds >= 0
        assert min(records, size) > 0
        found = Arrivals()
        for place in [each for each in self.due() if each not in self.over]:
            records -= self._take(place, min(records, self.portion()), size - found.bytes, found)
            if min(records, size - found.bytes) <= 0:
                break
        return found

    def _take(self, place: TopicPartition, most: int, size: int, found: Arrivals) -> int:
        own, at = self.own(place), self.at[place]
        assert own is not None
        end = own.end if own.shown is None else own.shown
        if own.refused:
            found.refused[place] = Retriable(f"the cluster does not show {place}")
        elif not own.start <= at <= max(end, own.end):
            found.out_of_range.add(place)
        elif own.damaged is not None and at >= own.damaged.offset:
            found.unreadable[place] = own.damaged
        else:
            return self._content(place, own, most, size, found)
        self.over.add(place)
        return 0

    def _content(self, place: TopicPartition, own: MemoryPartition, most: int, size: int, found: Arrivals) -> int:
        at, end = self.at[place], own.end if own.shown is None else own.shown
        sound = end if own.damaged is None else min(end, own.damaged.offset)
        below = min(sound, self.below.get(place, sound))
        some = [each for each in own.content if first_offset([each]) < below and following_offset([each]) > at]
        sizes = list(accumulate(map(_size, some)))
        taken = some[: max(1, min(most, bisect_right(sizes, size)))]  # one, however large
        covered = max(at, below)
        if taken:
            last = following_offset(taken)
            found.records[place], found.epochs[place] = taken, own.epoch_at(last - 1)
            found.bytes += sizes[len(taken) - 1]
            covered = last if len(taken) < len(some) else max(last, covered)
        if covered > at:
            found.covered[place] = self.at[place] = covered
        if covered == end and self.told.get(place) != end:
            found.ended[place] = self.told[place] = end
            own.shown = None
        return len(taken)

    def reading_on(self) -> AbstractContextManager[None]:
        """See `Log.reading_on`."""
        return nullcontext()

    def close(self) -> None:
        """See `Log.close`."""
        self.leave(list(self.at))
        self.closed = True


def _size(each: Any) -> int:
    return len(each.value or b"") if isinstance(each, Record) else int(each.size)


def read_at(
    wanted: Sequence[GapRange], records: Iterable[Record], end: int, *, damage: BatchUnreadable | None = None
) -> RangesRead:
    """What is read of ranges of a partition whose log ends there, and has these records."""
    found = [each for each in records if any(first <= each.offset < following for first, following in wanted)]
    return RangesRead(until=min(end, wanted[-1][1]), records=found, damage=damage)


def look_at(wanted: Sequence[GapRange], visible: Iterable[int], end: int, *, size: int = 1) -> Look:
    """What a look shows of a partition whose log ends there, and where readers see a record at these offsets."""
    until = min(wanted[-1][1], end)
    inside = (at for at in sorted(visible) if at < until and any(first <= at < end for first, end in wanted))
    return Look(until=until, visible=dict.fromkeys(inside, size))
