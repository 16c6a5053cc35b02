"""The function that pulls, over the stores and clusters of a flow in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mirrorless.adapters.kafka.log_ranges import MANY
from mirrorless.clock import Deadline
from mirrorless.copy.pull import PullReport, PullRun
from mirrorless.copy.readings import Readings
from mirrorless.copy.shards import ShardLease
from mirrorless.flow.rate_limit import ByteRateLimit
from mirrorless.flow.triggers import WINDOW_SECONDS
from mirrorless.ports.kafka import EpochEnd, OffsetAndMetadata, TopicPartition
from mirrorless.ports.log import Arrivals
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import following_offset
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments
from tests.support.memory_log import MemoryLog, MemoryPartition
from tests.support.protocol_world import World
from tests.support.schedule import watched

RUN_SECONDS = 300

Offsets = dict[TopicPartition, OffsetAndMetadata]


@dataclass(slots=True, kw_only=True)
class WorldLog(MemoryLog):
    """The source of a world, of which a growing part has been written; how much comes is left to chance."""

    there: World
    chance: random.Random
    raw: bool = False
    """Whether it is read by whole batches."""
    old_below: int = 0
    """Batches below this upstream offset have an old format."""

    def own(self, place: TopicPartition) -> MemoryPartition:
        """See `MemoryLog.own`."""
        there, (_, partition), end = self.there, place, self._end(place)
        content: list[Any] = [*(there.batches[partition] if self.raw else there.source[partition])]
        damaged = there.damage(partition, at := self.at.get(place, end), end)
        if self.raw and at < self.old_below:
            damaged = BatchUnreadable("the batch has the old format 1", offset=at, old_format=True)
        return MemoryPartition(
            content=[each for each in content if following_offset([each]) <= end],
            end=end,
            damaged=damaged,
            epoch_at=lambda offset: max(epoch for epoch, first in there.epochs_of(partition) if first <= offset),
        )

    def due(self) -> Iterable[TopicPartition]:
        """See `MemoryLog.due`."""
        return self.chance.sample(sorted(self.at), self.chance.randint(0, len(self.at)))

    def portion(self) -> int:
        """See `MemoryLog.portion`."""
        return self.chance.randint(1, 4 if self.raw else 8)

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """See `Log.arrivals`. Of whole batches bytes alone limit what is returned."""
        found = MemoryLog.arrivals(self, seconds, records=MANY if self.raw else records, size=size)
        self.there.now += 1 if found else int(seconds * 1000) + 1
        return found

    def _end(self, place: TopicPartition) -> int:
        stored = self.there.source[place[1]] if self.there.lane(place[1]).topic == place[0] else []
        if self.there.batches or not self.there.markers:
            return stored[-1].offset + 1 if stored else 0
        return stored[-1].offset + 2 if stored else 0  # behind a record, at an odd offset, there may be a marker


@dataclass(slots=True)
class MemoryEpochs:
    """Implements `LogEpochs` over the source of a world."""

    there: World
    unknown: bool = False
    """Whether the cluster is too old to say any of it."""
    leaderless: set[TopicPartition] = field(default_factory=set)

    def ends(self, epochs: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, EpochEnd] | None:
        """See `LogEpochs.ends`; as a broker answers."""
        if self.unknown:
            return None
        return {place: self._end(place, asked) for place, asked in epochs.items() if place not in self.leaderless}

    def current(self, topics: Iterable[str], deadline: Deadline) -> dict[TopicPartition, int] | None:
        """See `LogEpochs.current`."""
        places = [(self.there.lane(p).topic, p) for p in self.there.source]
        found = {place: self.there.epochs_of(place[1])[-1][0] for place in places if place[0] in set(topics)}
        return None if self.unknown else {place: it for place, it in found.items() if place not in self.leaderless}

    def topic_ids(self, topics: Iterable[str], deadline: Deadline) -> dict[str, str] | None:
        """See `LogEpochs.topic_ids`."""
        known = self.there.topic_ids
        return None if self.unknown else {topic: known[topic] for topic in topics if topic in known}

    def close(self) -> None:
        """See `LogEpochs.close`."""

    def _end(self, place: TopicPartition, asked: int) -> EpochEnd:
        epochs = self.there.epochs_of(place[1])
        if asked == epochs[-1][0]:
            stored = self.there.source[place[1]]
            return EpochEnd(asked, max(epochs[-1][1], stored[-1].offset + 1 if stored else 0))
        following = next((first for epoch, first in epochs if epoch > asked), None)
        if following is None:
            return EpochEnd(-1, -1)
        return EpochEnd(max((epoch for epoch, _ in epochs if epoch <= asked), default=asked), following)


class NoGroups:
    """Groups without an offset, which take every commit."""

    hidden: frozenset[str] = frozenset()
    """Of which nothing can be read."""

    def committed(self, groups: Iterable[str], deadline: Deadline) -> dict[str, Offsets]:
        """See `Groups.committed`."""
        return {group: {} for group in groups if group not in self.hidden}

    def commit(self, group: str, offsets: Offsets, deadline: Deadline) -> None:
        """See `Groups.commit`."""


def _in_order(batch: Batch, outcome: BatchOutcome, received_at: int) -> None:  # noqa: ARG001 -- the run's
    """Hold that of each lane every record comes once in a batch, and in the log's order."""
    for content in batch.records.values():
        offsets = [each.offset if isinstance(each, Record) else each.base_offset for each in content]
        if offsets != sorted(set(offsets)):
            raise AssertionError(f"a batch has these offsets of a lane: {offsets}")


@dataclass(slots=True)
class PullFunction:
    """One execution environment of the function."""

    there: World
    chance: random.Random
    documents: MemoryDocuments
    name: str
    continuous: bool
    on_minute: Callable[[PullReport], None] = lambda _report: None
    raw: bool = False
    """Whether its engine reads whole batches."""
    window_seconds: float = WINDOW_SECONDS
    known_ids: dict[str, str] = field(default_factory=dict)
    """Of the topics that the chains describe."""
    limit: ByteRateLimit | None = None
    epochs: MemoryEpochs = field(init=False)
    replicator: Replicator = field(init=False)
    readings: Readings = field(default_factory=Readings)
    runs: int = 0

    def __post_init__(self) -> None:
        self.replicator = self.there.environment(writer="pull.0")
        self.epochs = MemoryEpochs(self.there)

    def run(self) -> PullReport:
        """A run that has the shard."""
        report = self.invoke()
        assert report is not None
        return report

    def invoke(self) -> PullReport | None:
        """What its handler does; None where another run has the shard."""
        there, begins = self.there, self.there.now
        self.runs += 1
        lease = ShardLease(
            flow=FLOW,
            shard=0,
            holder=f"{self.name}/{self.runs}",
            ends_at=begins + RUN_SECONDS * 1000,
            documents=watched(self.documents, "documents"),
            clock=lambda: there.now,
        )
        run = PullRun(
            replicator=self.replicator,
            log=WorldLog(there=there, chance=self.chance, raw=self.raw),
            groups=NoGroups(),  # type: ignore[arg-type]  # what a run asks for
            epochs=self.epochs,
            lease=lease,
            clock=lambda: there.now,
            topics=self._topics,
            topic_ids=lambda: self.known_ids,
            consumer_group=lambda topic: f"group-of-{topic}",
            shard=0,
            shards=1,
            continuous=self.continuous,
            window_seconds=self.window_seconds,
            limit=self.limit,
            on_batch=_in_order,
            on_minute=self.on_minute,
            readings=self.readings,
            sleep=self._sleep,
            monotonic=lambda: there.now / 1000,
        )
        if not lease.take():
            if not lease.succeeds():
                return None
            run.warm_up(lambda: 60.0)
            for _ in range(200):
                if lease.take():
                    break
                self._sleep(0.5)
            else:
                return None
        return run.run(lambda: (begins - there.now) / 1000 + RUN_SECONDS)

    def _topics(self) -> dict[str, int]:
        lanes = [self.there.lane(partition) for partition in self.there.source]
        return {each.topic: max(other.partition for other in lanes if other.topic == each.topic) + 1 for each in lanes}

    def _sleep(self, seconds: float) -> None:
        self.there.now += int(seconds * 1000) + 1
