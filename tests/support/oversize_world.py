"""A source in memory as a read_committed reader sees it, with records that no event can carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mirrorless.clock import Deadline
from mirrorless.ports.kafka import RangesRead, TopicPartition
from mirrorless.records.record import Record
from tests.support.protocol_world import World, records


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
