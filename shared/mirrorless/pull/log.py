"""The source's logs as a pull reads them: many partitions at once, each from an offset of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from mirrorless.clock import Deadline
from mirrorless.ports.kafka import TopicPartition
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable, RecordBatch


@dataclass(slots=True)
class Arrivals:
    """What has come from the source since the last call."""

    records: dict[TopicPartition, list[Record] | list[RecordBatch]] = field(default_factory=dict)
    """In the order of their offsets: records, or whole batches from a log that is read by them. The first batch may
    begin below the offset that was to be read."""
    bytes: int = 0
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """The leader epoch at the end of what came of a partition, where it is known; see `Run.epoch`."""
    ended: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions that were read to their stable end, and that offset: below it nothing is left to come."""
    out_of_range: set[TopicPartition] = field(default_factory=set)
    """Partitions whose log does not hold the offset that was to be read next."""
    truncated: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions whose log parts at this offset from the one that was read. Nothing more of them comes."""
    unreadable: dict[TopicPartition, BatchUnreadable] = field(default_factory=dict)
    """Partitions whose next batch cannot be read whole. Nothing more of them comes."""

    def add(self, more: Arrivals) -> None:
        """Join what came later."""
        for place, records in more.records.items():
            if place in self.records:
                self.records[place] += records  # type: ignore[operator]  # of one kind, as its log reads
            else:
                self.records[place] = records
        self.bytes += more.bytes
        self.epochs |= more.epochs
        self.ended |= more.ended
        self.out_of_range |= more.out_of_range
        self.truncated |= more.truncated
        self.unreadable |= more.unreadable


@dataclass(slots=True)
class RawArrivals:
    """What has come by whole batches: as `Arrivals`, which has records instead."""

    records: dict[TopicPartition, list[RecordBatch]] = field(default_factory=dict)
    """In the order of their offsets; without control batches, and without those of aborted transactions. The first may
    begin below the offset that is read from, where that lies inside it."""
    covered: dict[TopicPartition, int] = field(default_factory=dict)
    """By partition of which anything came: the offset below which nothing is left to come."""
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """Of the same: the leader epoch of what stands before that offset."""
    bytes: int = 0
    ended: dict[TopicPartition, int] = field(default_factory=dict)
    out_of_range: set[TopicPartition] = field(default_factory=set)
    truncated: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions whose leader has another log than the one that was read: where both part. Nothing more of it comes."""
    unreadable: dict[TopicPartition, BatchUnreadable] = field(default_factory=dict)
    """Partitions whose next batch cannot be read whole. Nothing more of it comes."""

    def __bool__(self) -> bool:
        """Whether anything came."""
        return bool(self.covered or self.ended or self.out_of_range or self.truncated or self.unreadable)


class PulledLog(Protocol):
    """The logs of one cluster, read by one consumer. Every method raises Retriable when the cluster does not answer."""

    def stable_ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The last stable offset of partitions; those that are gone, or without a leader, are left out."""
        ...

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The first offset of partitions; those that are gone, or without a leader, are left out."""
        ...

    def follow(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions too, each from its offset on."""
        ...

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions no more; what has come of them and was not returned is dropped."""
        ...

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """What is there of the partitions followed; waits for the first of it.

        Args:
            seconds: to wait at most.
            records: to return at most.
            size: bytes to return, about.
        """
        ...

    def reading_on(self) -> AbstractContextManager[None]:
        """Reads on inside this context, where nothing else of the log may be called.

        The next `arrivals` returns what came, and raises what was wrong.
        """
        ...

    def close(self) -> None:
        """Leave all partitions, and drop all that has come."""
        ...
