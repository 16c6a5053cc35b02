"""The move of a consumer group to the other cluster and back, with a count of what it reads.

It reads a flow's topics on the source, leaves, waits until its offsets are on the target, goes on there on the remote
topics, leaves, waits until its offsets are on the source, and goes on there to the end. Where its offsets ought to be
says the offset map; whether that was right says the audit, which pairs the records of both sides without the map.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lab.audit.audit import TopicAudit
from lab.audit.topic_reader import stable_ends
from lab.drills.application import Application, PartitionKey
from mirrorless.chain.lane import Lane
from mirrorless.config.flow import Flow
from mirrorless.ports.stores import Chains
from mirrorless.protocol.translate import OffsetMap

ClusterSide = Literal["source", "target"]
SIDES: tuple[ClusterSide, ...] = ("source", "target")

KNOWN = {"exact", "next_record"}
"""States of a translation that says where the group goes on, wherever replication stands."""

LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFindings:
    """What a group made of a flow's records."""

    records: int
    """Visible records of the source topics."""
    reread: int
    """How often one of them was read once more than it should."""
    skipped: int
    """Those that were never read."""
    strays: int
    """Topics, on either side, that the group has offsets of though it never was to read them."""
    read_on: Mapping[str, int]
    """Records read, by the cluster's alias."""

    @property
    def clean(self) -> bool:
        """Whether every record was read once, and nothing else was given to the group."""
        return not (self.reread or self.skipped or self.strays)


@dataclass(slots=True, kw_only=True)
class MovingGroup:
    """A group on its way between the clusters of one flow."""

    flow: Flow
    partitions: Mapping[str, int]
    """Of each topic that it reads, by its name on the source."""
    chains: Chains
    application: Application
    over: threading.Event = field(default_factory=threading.Event)
    """Set to let everything end early."""

    @property
    def topics(self) -> Sequence[str]:
        """What it reads, by the source's names."""
        return list(self.partitions)

    def read(self, side: ClusterSide, *, at_least: int, until: Callable[[], bool], seconds: float) -> None:
        """Read on one side until the moment comes, and so many records are read.

        Raises:
            TimeoutError: they are not, in time.
        """
        address, names = self._address(side), [self._name(side, topic) for topic in self.topics]

        def finished(_: Mapping[PartitionKey, int]) -> bool:
            return self.application.read_count(address) >= at_least and until()

        self.application.read(address, names, until=self._in_time(finished, seconds))

    def read_to_end(self, *, produced: Callable[[], bool], seconds: float) -> None:
        """Read on the source until everything is produced, and all of it is read.

        Raises:
            TimeoutError: it is not, in time.
        """
        source = self._address("source")
        wanted: dict[PartitionKey, int] = {}

        def finished(reached: Mapping[PartitionKey, int]) -> bool:
            if not produced():
                return False
            if not wanted:
                for topic in self.topics:
                    wanted.update({(topic, partition): end for partition, end in stable_ends(source, topic).items()})
            return all(reached.get(place, -1) >= end for place, end in wanted.items())

        self.application.read(source, self.topics, until=self._in_time(finished, seconds))

    def _in_time(
        self, finished: Callable[[Mapping[PartitionKey, int]], bool], seconds: float
    ) -> Callable[[Mapping[PartitionKey, int]], bool]:
        deadline = time.monotonic() + seconds

        def until(reached: Mapping[PartitionKey, int]) -> bool:
            if self.over.is_set() or finished(reached):
                return True
            if time.monotonic() > deadline:
                counts = {address: counts.total() for address, counts in self.application.reads.items()}
                raise TimeoutError(f"group {self.application.group} did not read enough in {seconds:.0f} s: {counts}")
            return False

        return until

    def await_offsets(self, side: ClusterSide, *, seconds: float) -> float:
        """Wait until the offsets that the group committed on the other side are committed here, translated.

        Returns:
            how long that took, in seconds.

        Raises:
            TimeoutError: naming the places that are behind.
        """
        began = time.monotonic()
        there = self.application.committed(self._address(_other(side)), self._places(_other(side)))
        while behind := self._behind(side, there):
            if self.over.wait(LOOK_EVERY_S):
                break
            if time.monotonic() > began + seconds:
                raise TimeoutError(f"group {self.application.group} is not ready on the {side} in time: {behind}")
        return time.monotonic() - began

    def findings(self, audits: Mapping[str, TopicAudit]) -> GroupFindings:
        """Count, from what the audit found where, by source topic; both clusters answer."""
        names = {self.flow.remote_topic(topic): topic for topic in self.topics}
        reads = self.application.reads
        on_source = reads.get(self._address("source"), Counter())
        on_target = reads.get(self._address("target"), Counter())
        return GroupFindings(
            strays=sum(
                len(self.application.topics(self._address(side)) - {self._name(side, topic) for topic in self.topics})
                for side in SIDES
            ),
            **judge(audits, on_source, Counter({((names[t], p), o): n for ((t, p), o), n in on_target.items()})),
            read_on={self.flow.name.source: on_source.total(), self.flow.name.target: on_target.total()},
        )

    def _behind(self, side: ClusterSide, there: Mapping[PartitionKey, int]) -> list[str]:
        """Why the group must not go on here yet, by place; `there` is what it committed on the other side."""
        here = self.application.committed(self._address(side), self._places(side))
        behind = []
        for place, (topic, partition) in zip(self._places(side), self._places("source"), strict=True):
            left_at, found = there.get((self._name(_other(side), topic), partition)), here.get(place)
            lane = Lane(self.flow.name, topic, partition)
            if left_at is not None and (
                found is None or not has_arrived(self.chains, side, lane, left_at=left_at, here=found)
            ):
                behind.append(f"{lane}: it left at {left_at}, and has {found} here")
        return behind

    def _places(self, side: ClusterSide) -> list[PartitionKey]:
        return [(self._name(side, topic), p) for topic, count in self.partitions.items() for p in range(count)]

    def _name(self, side: ClusterSide, topic: str) -> str:
        return topic if side == "source" else self.flow.remote_topic(topic)

    def _address(self, side: ClusterSide) -> str:
        return (self.flow.source if side == "source" else self.flow.target).bootstrap[0]


def has_arrived(chains: Chains, side: ClusterSide, lane: Lane, *, left_at: int, here: int) -> bool:
    """Whether a group that has read up to `left_at` on the other side has nothing to read twice from `here` on.

    Args:
        chains: the offset map.
        side: where it is to go on.
        lane: of the records.
        left_at: the offset that it committed on the other side.
        here: the offset that it has on this side.
    """
    offsets = OffsetMap(chains)
    # Compared downstream in both directions: several upstream offsets in a gap mean one record.
    upstream, downstream = (left_at, here) if side == "target" else (here, left_at)
    wanted = offsets.downstream(lane, upstream)
    if wanted.offset is None or wanted.state not in KNOWN:
        return False
    # What lies between may be markers alone: behind the last record, and before the next one, is the same place.
    goes_on, came_to = (downstream, wanted.offset) if side == "target" else (wanted.offset, downstream)
    return offsets.records_between(lane, goes_on, came_to, "downstream") == 0


def _other(side: ClusterSide) -> ClusterSide:
    return "source" if side == "target" else "target"


Reads = Mapping[tuple[PartitionKey, int], int]
"""How often the record at an offset of a place was read; the topic is the source's."""


def judge(audits: Mapping[str, TopicAudit], on_source: Reads, on_target: Reads) -> dict[str, int]:
    """`records`, `reread` and `skipped` of the audited topics."""
    counts: Counter[tuple[PartitionKey, int]] = Counter(on_source)
    strangers = 0
    for ((topic, partition), downstream), count in on_target.items():
        upstream = audits[topic].upstream_of[partition].get(downstream)
        if upstream is None:
            strangers += count  # it has no original of its own: whatever it repeats was read elsewhere
        else:
            counts[(topic, partition), upstream] += count
    records = {
        ((topic, partition), offset)
        for topic, audit in audits.items()
        for partition, offsets in audit.upstream.items()
        for offset in offsets
    }
    return {
        "records": len(records),
        "reread": strangers + sum(count - 1 for count in counts.values() if count > 1),
        "skipped": sum(record not in counts for record in records),
    }
