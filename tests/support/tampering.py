"""Copies that went wrong on their way to the target, while the chain has no sign of it.

The writer of an environment writes something else than it was given, and reports the given records: so the chain
has the offsets and the digest of what should be there. Each fault stands for something that happens:

    missing      acknowledged and lost: the leader died before its followers had it, and one of them became the leader
    duplicated   sent again after an answer that got lost, by a producer without idempotence
    swapped      the same with several requests under way: the second one arrives first
    changed      a byte, a header or a timestamp: "repaired" records, or a topic with LogAppendTime
    emptied      a tombstone that a serializer in between has made an empty value of
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from mirrorless.clock import Deadline
from mirrorless.ports.kafka import Delivery, TopicPartition
from mirrorless.protocol.replicate import Replicator
from mirrorless.records.record import Record

Tampered = tuple[list[Record], list[int]]
"""The records written instead, and the reported index among those of each given record."""

Tamper = Callable[[list[Record]], Tampered]


def missing(at: int) -> Tamper:
    """One record is not there; the reported offset of the last one is that of the commit marker."""
    return lambda records: (records[:at] + records[at + 1 :], list(range(len(records))))


def duplicated(at: int) -> Tamper:
    """One record is there twice in a row."""
    return lambda records: (
        records[: at + 1] + records[at:],
        [index if index <= at else index + 1 for index in range(len(records))],
    )


def swapped(at: int) -> Tamper:
    """Two records in a row have changed places."""
    return lambda records: (
        [*records[:at], records[at + 1], records[at], *records[at + 2 :]],
        list(range(len(records))),
    )


def changed(at: int, **parts: Any) -> Tamper:
    """One record has other parts."""
    return lambda records: (
        [*records[:at], replace(records[at], **parts), *records[at + 1 :]],
        list(range(len(records))),
    )


def thinned_out(first: int) -> Tamper:
    """Compaction has removed the first records of a batch: no reader sees anything where they stood.

    A transaction of as many records has to be aborted there before.
    """
    return lambda records: (
        records[first:],
        [index - (index < first) - first for index in range(len(records))],
    )


def tampered_with(environment: Replicator, faults: Mapping[int, Tamper]) -> Replicator:
    """The environment, which from now on writes something else; faults are by partition."""
    environment.target = _Target(environment.target, faults)
    return environment


@dataclass(slots=True)
class _Target:
    """A target whose writer lies."""

    real: Any
    faults: Mapping[int, Tamper]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def writer(self, deadline: Deadline) -> _Writer:
        """See `Target.writer`."""
        return _Writer(self.real.writer(deadline), self.faults)


@dataclass(slots=True)
class _Writer:
    real: Any
    faults: Mapping[int, Tamper]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def write(
        self,
        lanes: Mapping[TopicPartition, Sequence[Record]],
        deadline: Deadline,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[TopicPartition, Delivery]:
        """See `Writer.write`."""
        tampered: dict[TopicPartition, Tampered] = {
            place: self.faults[place[1]](list(records))
            if place[1] in self.faults
            else (list(records), list(range(len(records))))
            for place, records in lanes.items()
        }
        lanes = {place: records for place, (records, _) in tampered.items()}
        written = self.real.write(lanes, deadline, meanwhile)
        return {
            place: Delivery(downstream=[delivery.downstream[0] + index for index in tampered[place][1]])
            for place, delivery in written.items()
        }
