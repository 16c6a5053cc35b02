"""Lanes that stand still although records wait for them, and the faults at which they do.

    waits       the source shows a record (acknowledged, and below the last stable offset) at or above the lane's
                position: the end of its chain, up to which downstream offsets are confirmed
    stuck       from a look at which the lane waits to the next at which it has another position or waits no more
    of a fault  the longest time in which a lane was stuck, counted from the fault's beginning; of all times that begin
                before the fault ends or within AFTERMATH_SECONDS of its end, and last until after it began

Faults that are under way together each get the time for which they hold a lane up together. A look takes place every
LOOK_EVERY_SECONDS while DynamoDB answers, so that a time may be too long by that, or too short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from botocore.config import Config
from confluent_kafka import Consumer, KafkaException, TopicPartition

from lab.cloud import Lab
from lab.waiting import RepeatedLook
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.errors import Retriable

LOOK_EVERY_SECONDS = 0.5
AFTERMATH_SECONDS = 1.0
"""After the end of a fault: a killed server is missed by the next record, not by the last one."""
ANSWER_SECONDS = 1.0
ONE_TRY = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpan:
    """When a fault was under way, on the clock of `time.monotonic`. One that takes no time ends when it begins."""

    kind: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckTime:
    """One time in which one lane was stuck, on the clock of `time.monotonic`."""

    partition: int
    began: float
    ended: float


class StuckTimes:
    """The times in which lanes were stuck, from one look to the next. Pure."""

    def __init__(self) -> None:
        self.over: list[StuckTime] = []
        self._since: dict[int, tuple[float, int]] = {}
        """Of each lane that waits: since when at its position, and the position."""

    def look(self, at: float, positions: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Note what is seen now.

        Args:
            at: when.
            positions: of each lane, by partition.
            ends: the first upstream offset behind the records that the source shows.
        """
        for partition, position in positions.items():
            since = self._since.get(partition)
            waits = position < ends.get(partition, 0)
            if since is not None and (not waits or since[1] != position):
                self.over.append(StuckTime(partition=partition, began=since[0], ended=at))
                del self._since[partition]
            if waits:
                self._since.setdefault(partition, (at, position))

    def end(self, at: float) -> Sequence[StuckTime]:
        """Every time, those that are not over as if they were over now."""
        left = [StuckTime(partition=each, began=since, ended=at) for each, (since, _) in self._since.items()]
        return [*self.over, *left]


def longest_by_fault(stuck: Iterable[StuckTime], faults: Iterable[FaultSpan]) -> dict[str, float]:
    """The longest time of each kind of fault, in seconds; 0 where no lane was stuck."""
    stuck = list(stuck)
    longest: dict[str, float] = {}
    for fault in faults:
        times = [
            each.ended - max(each.began, fault.began)
            for each in stuck
            if each.began < fault.ended + AFTERMATH_SECONDS and each.ended > fault.began
        ]
        longest[fault.kind] = round(max([longest.get(fault.kind, 0.0), *times]), 1)
    return longest


class LaneWatch:
    """A thread that looks at the lanes of one topic."""

    def __init__(self, lab: Lab, flow: FlowName, topic: str, written: Callable[[], Mapping[int, int]]) -> None:
        """Args: written: the offset behind the last acknowledged record of each partition."""
        source = {"bootstrap.servers": lab.clusters[flow.source].direct, "group.id": "lane watch", "log_level": 0}
        self._source = Consumer({**source, "isolation.level": "read_committed"})
        self._chains = DynamoDbChains(lab.dynamodb.client(ONE_TRY), lab.tables.offset_map)
        self._flow = flow
        self._topic = topic
        self._written = written
        self._stable: dict[int, int] = {}
        self.times = StuckTimes()
        self._watch = RepeatedLook(self.look, every=LOOK_EVERY_SECONDS, name="lane watch")

    def start(self) -> None:
        """Begin to look."""
        self._watch.start()

    def finish(self) -> Sequence[StuckTime]:
        """Look once more, and no more. Raises what a look has raised."""
        self._watch.finish()
        self.look()
        self._source.close()
        return self.times.end(time.monotonic())

    def look(self) -> None:
        """Look once."""
        written = self._written()
        lanes = {partition: Lane(self._flow, self._topic, partition) for partition in written}
        with suppress(KafkaException):  # where the source is away, what it showed at the last look waits
            for partition in written:
                place = TopicPartition(self._topic, partition)
                self._stable[partition] = self._source.get_watermark_offsets(place, timeout=ANSWER_SECONDS)[1]
        shown = {partition: min(end, self._stable.get(partition, 0)) for partition, end in written.items()}
        try:
            heads = self._chains.heads(lanes.values())
        except Retriable:
            return  # DynamoDB is away: no position can move, and the next look sees that none has
        positions = {partition: heads[lane].position for partition, lane in lanes.items()}
        self.times.look(time.monotonic(), positions, shown)
