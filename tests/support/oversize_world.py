"""A source in memory as a read_committed reader sees it, and a mapping that leaves out what no event can carry."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from mirrorless.clock import Deadline
from mirrorless.ports.kafka import RangesRead, TopicPartition
from mirrorless.protocol.event import Batch
from mirrorless.records.record import Record
from tests.support.protocol_world import TOPIC, World, records


def large(offset: int, size: int) -> Record:
    """A record whose value has so many bytes in an event, at least."""
    return replace(records(offset)[0], value=b"%0*d" % (-(-size // 4) * 3, offset))


@dataclass(slots=True)
class MemoryCommittedLog:
    """Implements `CommittedLog` over a world's source."""

    there: World
    ends_at: int = 1 << 40
    """The upstream offset at which every read ends."""
    reads: int = 0

    def read(
        self, ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]], deadline: Deadline, *, near: int, size: int
    ) -> dict[TopicPartition, RangesRead]:
        """See `CommittedLog.read`."""
        self.reads += 1
        return {place: self._read(place[1], wanted, size) for place, wanted in ranges.items()}

    def _read(self, partition: int, wanted: Sequence[tuple[int, int]], size: int) -> RangesRead:
        stored, found = {each.offset: each for each in self.there.source[partition]}, list[Record]()
        for first, following in wanted:
            for offset in range(first, following):
                if offset >= self.ends_at:
                    return RangesRead(until=max(first, self.ends_at), records=found)
                if (bad := self.there.damage(partition, offset, offset + 1)) is not None:
                    return RangesRead(until=max(first, bad.offset), records=found, damage=bad)
                if offset in stored:
                    found.append(stored[offset])
                    if size == 1:
                        return RangesRead(until=offset + 1, records=found)
        return RangesRead(until=wanted[-1][1], records=found)


@dataclass(slots=True)
class SkippingMapping:
    """A mapping that passes records that no event can carry, or stands before them, and its group's offsets."""

    there: World
    kinds: Mapping[int, Sequence[str]]
    """By partition: what stands at each upstream offset, `record`, `large`, or what is no record."""
    skips: bool
    chance: random.Random
    group: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.group = dict.fromkeys(self.kinds, 0)

    def event(self) -> Batch:
        """What it delivers next, of some partitions, and now and then again from before."""
        found: dict[int, list[Record]] = {}
        for partition, kinds in self.kinds.items():
            begin = max(0, self._next(partition) - self.chance.choice([0, 0, 4]))
            end = min(begin + self.chance.randint(1, 12), len(kinds))
            if not self.skips:
                end = kinds.index("large", begin, end) if "large" in kinds[begin:end] else end
            some = [each for each in self.there.source[partition] if begin <= each.offset < end]
            if self.chance.random() < 0.7:
                found[partition] = [each for each in some if kinds[each.offset] == "record"]
        return Batch.of_topic(TOPIC, {partition: some for partition, some in found.items() if some})

    def delivered(self, batch: Batch, held: Container[TopicPartition]) -> None:
        """A batch was taken, but for what some lanes had of it."""
        for place in batch.records:
            records, partition = batch.records_of(place), place[1]
            if place not in held and records[0].offset <= self._next(partition):
                self.group[partition] = max(self.group[partition], records[-1].offset + 1)

    def _next(self, partition: int) -> int:
        """Its next record: it passes what is none."""
        kinds, at = self.kinds[partition], self.group[partition]
        while at < len(kinds) and kinds[at] not in (("record",) if self.skips else ("record", "large")):
            at += 1
        return at
