"""A source in memory with records that no event can carry, the mapping that leaves them out, and its group."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mirrorless.clock import Deadline
from mirrorless.lanes.gaps import EVENT_BYTES
from mirrorless.lanes.log_ends import LogEndCopy, LogEndMemory
from mirrorless.ports.kafka import LogEnds, OffsetAndMetadata, RangesRead, TopicPartition
from mirrorless.protocol.event import Batch
from mirrorless.protocol.replicate import Replicator
from mirrorless.records.record import Record
from mirrorless.scheduled.runner import RoundReport
from tests.support.chains import FLOW
from tests.support.protocol_world import TOPIC, World, records
from tests.support.schedule import watched

Kind = Literal["record", "oversize", "marker", "aborted", "compacted"]

LARGE = "large"
"""The name of a header that stands for a size, so that thousands of schedules need no memory."""


def bytes_in_event(record: Record) -> int:
    """In place of `event_bytes`."""
    return EVENT_BYTES if any(name == LARGE for name, _ in record.headers) else 10


@dataclass(slots=True)
class MemoryCommittedLog:
    """Implements `CommittedLog` over a world's source, and ends its reads wherever it likes."""

    there: OversizeWorld
    chance: random.Random

    def read(
        self, ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]], deadline: Deadline, *, near: int, size: int
    ) -> dict[TopicPartition, RangesRead]:
        """See `CommittedLog.read`."""
        self.there.counts["reads"] += 1
        return {place: self._read(place[1], wanted, size) for place, wanted in ranges.items()}

    def _read(self, partition: int, wanted: Sequence[tuple[int, int]], size: int) -> RangesRead:
        cut = self.chance.random()
        if cut < 0.02:
            return RangesRead(until=-1)
        stable, found = self.there.end(partition), list[Record]()
        for first, following in wanted:
            for offset in range(first, min(following, stable)):
                if (bad := self.there.there.damage(partition, offset, offset + 1)) is not None:
                    return RangesRead(until=max(first, bad.offset), records=found, damage=bad)
                record = self.there.at(partition, offset)
                if record is not None:
                    found.append(record)
                if (cut < 0.4 and self.chance.random() < 0.4) or (record is not None and size == 1):
                    self.there.counts["cut"] += 1
                    return RangesRead(until=offset + 1, records=found)
        return RangesRead(until=min(wanted[-1][1], stable), records=found)


@dataclass(slots=True)
class OversizeWorld:
    """A world whose source has every kind of offset, of which a growing part has been written."""

    kinds: dict[int, list[Kind]]
    """By partition: what stands at each upstream offset."""
    chance: random.Random
    skips: bool
    """Whether the mapping passes a record that no event can carry; otherwise it stands there for ever."""
    written: dict[int, int] = field(default_factory=dict)
    """The end of each log by now."""
    there: World = field(init=False)
    group: dict[int, int] = field(default_factory=dict)
    """The mapping's committed offsets."""
    counts: Counter[str] = field(default_factory=Counter)
    memory: LogEndMemory = field(default_factory=LogEndMemory)

    def __post_init__(self) -> None:
        """Make the source's records."""
        found = {
            partition: [o for o, kind in enumerate(kinds) if kind in {"record", "oversize"}]
            for partition, kinds in self.kinds.items()
        }
        self.there = World({partition: records(*offsets) for partition, offsets in found.items()})
        for partition, stored in self.there.source.items():
            for record in stored:
                if self.kinds[partition][record.offset] == "oversize":
                    record.headers.append((LARGE, None))
        self.written = dict.fromkeys(self.kinds, 0)

    def at(self, partition: int, offset: int) -> Record | None:
        """The committed record at an upstream offset."""
        return next((each for each in self.there.source[partition] if each.offset == offset), None)

    def end(self, partition: int) -> int:
        """The last stable offset."""
        return self.written[partition]

    def environment(self, *, writer: str = "") -> Replicator:
        """One more environment of the forwarder, or of the task at the logs' ends."""
        replicator = self.there.environment(writer=writer)
        replicator.gap_log = watched(MemoryCommittedLog(self, self.chance), "gap_log")
        replicator.from_log_start = True
        return replicator

    def event(self, begins: Mapping[int, int]) -> Batch | None:
        """What the mapping delivers next, from these offsets on; None for nothing."""
        found: dict[int, list[Record]] = {}
        for partition, begin in begins.items():
            count = self.chance.randint(1, 12)
            for offset in range(begin, min(begin + count, self.end(partition))):
                kind = self.kinds[partition][offset]
                if kind == "oversize" and not self.skips:
                    break
                if kind == "record" and (record := self.at(partition, offset)) is not None:
                    found.setdefault(partition, []).append(record)
        return Batch.of_topic(TOPIC, found) if found else None

    def next_begin(self, partition: int, offset: int) -> int:
        """Where the mapping stands, all below an offset being delivered: it passes what is no record."""
        kinds = self.kinds[partition]
        passes = {"marker", "aborted", "compacted"} | ({"oversize"} if self.skips else set())
        while offset < self.end(partition) and kinds[offset] in passes:
            offset += 1
        return offset

    # Kafka, as the task at the ends of logs asks it

    def ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, LogEnds]:
        """See `TargetEnds.ends`."""
        return {place: (0, self.end(place[1]), self.end(place[1])) for place in places}

    def committed(
        self, groups: Iterable[str], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """See `Groups.committed`."""
        offsets = {(TOPIC, partition): OffsetAndMetadata(at) for partition, at in self.group.items()}
        return dict.fromkeys(groups, offsets)

    def round(self, replicator: Replicator) -> RoundReport:
        """One round of the task."""
        report = RoundReport()
        assert replicator.gap_log is not None
        LogEndCopy(
            flow=FLOW,
            topics=lambda _: {TOPIC: len(self.kinds)},
            consumer_group=lambda topic: f"group-of-{topic}",
            ends=self,
            groups=self,  # type: ignore[arg-type]  # what the task asks for
            log=replicator.gap_log,
            replicator=replicator,
            clock=lambda: self.there.now,
            memory=self.memory,
        ).act(report, lambda: 30.0)
        return report
