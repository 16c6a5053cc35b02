"""The source's logs as a pull reads them: many partitions at once, each from an offset of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.record import Record


@dataclass(slots=True)
class Arrivals:
    """What has come from the source since the last call."""

    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    """In the order of their offsets."""
    bytes: int = 0
    ended: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions that were read to their stable end, and that offset: below it nothing is left to come."""
    out_of_range: set[TopicPartition] = field(default_factory=set)
    """Partitions whose log does not hold the offset that was to be read next."""

    def add(self, more: Arrivals) -> None:
        """Join what came later."""
        for place, records in more.records.items():
            if place in self.records:
                self.records[place] += records
            else:
                self.records[place] = records
        self.bytes += more.bytes
        self.ended |= more.ended
        self.out_of_range |= more.out_of_range


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

    def close(self) -> None:
        """Leave all partitions, and drop all that has come."""
        ...
