"""The logs of one cluster: many partitions at once, each from an offset of its own, by records or whole batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Protocol

from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import TopicPartition
from mirrorless.records.record_batch import BatchUnreadable

NOTHING_MORE: Mapping[TopicPartition, int] = {}


@dataclass(slots=True)
class Arrivals:
    """What has come since the last call."""

    records: dict[TopicPartition, list[Any]] = field(default_factory=dict)
    """In the order of their offsets: records, or whole batches from a log that is read by them. These are without
    control batches, and the first may begin below the offset that was to be read, where that lies inside it."""
    covered: dict[TopicPartition, int] = field(default_factory=dict)
    """By partition of which anything came: the offset below which nothing is left to come."""
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """The leader epoch at the end of what came of a partition, where it is known; see `Run.epoch`."""
    bytes: int = 0
    ended: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions that were read to their stable end, and that offset: below it nothing is left to come. Where less was
    wanted, the end of that."""
    out_of_range: set[TopicPartition] = field(default_factory=set)
    """Partitions whose log does not hold the offset that was to be read next."""
    truncated: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions whose log parts at this offset from the one that was read. Nothing more of them comes."""
    unreadable: dict[TopicPartition, BatchUnreadable] = field(default_factory=dict)
    """Partitions whose next batch cannot be read whole. Nothing more of them comes."""
    refused: dict[TopicPartition, Retriable] = field(default_factory=dict)
    """Partitions that the cluster does not show. Nothing more of them comes."""

    def places(self) -> Iterable[TopicPartition]:
        """Partitions of which anything came."""
        told = (self.covered, self.ended, self.out_of_range, self.truncated, self.unreadable, self.refused)
        return dict.fromkeys(chain.from_iterable(told))

    def __bool__(self) -> bool:
        """Whether anything came."""
        return bool(
            self.covered or self.ended or self.out_of_range or self.truncated or self.unreadable or self.refused
        )

    def add(self, more: Arrivals) -> None:
        """Join what came later."""
        for place, records in more.records.items():
            if place in self.records:
                self.records[place] += records
            else:
                self.records[place] = records
        self.bytes += more.bytes
        self.out_of_range |= more.out_of_range
        for name in _TOLD:
            getattr(self, name).update(getattr(more, name))

    def without(self, places: Collection[TopicPartition]) -> Arrivals:
        """Take away what came of some partitions, and return it. Bytes are left to the caller."""
        taken = Arrivals(out_of_range=self.out_of_range.intersection(places))
        self.out_of_range -= taken.out_of_range
        for name in ("records", *_TOLD):
            of = getattr(self, name)
            setattr(taken, name, {place: of.pop(place) for place in [each for each in of if each in places]})
        return taken

    def renamed(self, names: Mapping[TopicPartition, TopicPartition]) -> Arrivals:
        """The same of partitions that have other names."""
        found = Arrivals(bytes=self.bytes, out_of_range={names[place] for place in self.out_of_range})
        for name in ("records", *_TOLD):
            setattr(found, name, {names[place]: each for place, each in getattr(self, name).items()})
        return found


_TOLD: Final = ("covered", "epochs", "ended", "truncated", "unreadable", "refused")


class Log(Protocol):
    """Read by one consumer. Every method raises Retriable when the cluster does not answer."""

    def follow(self, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int] = NOTHING_MORE) -> None:
        """Read these partitions too, each from its offset on. Args: below: where they, if named, are to be read to."""
        ...

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions no more; what has come of them and was not returned is dropped."""
        ...

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """What is there of the partitions followed; waits for the first of it.

        Args:
            seconds: to wait at most.
            records: to return at most. Of whole batches they cost nothing, and bytes alone limit what is returned.
            size: bytes to return, about: one record, or batch, is returned however large it is.
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


class BoundedLog(Log, Protocol):
    """One of a cluster, which says as well where it begins and ends."""

    def stable_ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The last stable offset of partitions; those that are gone, or without a leader, are left out."""
        ...

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The first offset of partitions; those that are gone, or without a leader, are left out."""
        ...
