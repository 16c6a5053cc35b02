"""The positions of one cluster, for operators: log ends, group lag, and the age of the first waiting record.

The forwarder does not use it. A look at timestamps is bounded in time, commits nothing, and sees what readers with
`read_committed` see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

from mirrorless.adapters.kafka.admin import first_cause
from mirrorless.adapters.kafka.client import MARGIN_SECONDS
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.log import LOOK, KafkaLog, uncommitted
from mirrorless.adapters.kafka.log_ranges import MANY, TO_THE_END, Range, RangePart, read_ranges
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.wire.cluster import WireCluster
from mirrorless.adapters.kafka.wire.open_transactions import OpenProducer, open_producers
from mirrorless.clock import Deadline, deadline_in
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import LogEnds, TopicPartition
from mirrorless.records.record import Record

ANSWER_SECONDS = 5.0
"""How long an operator waits for a cluster that may be gone."""

LOOK_BACK = (50, 500, 5_000)
"""Offsets before the end of a topic in which its last record is looked for, one try after the other: commit markers and
other flows' heartbeats stand in between."""

SAMPLE_BYTES = 64 * 1024 * 1024
"""Of records for a look at them, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction of any producer behind whose first record no `read_committed` reader sees anything."""

    offset: int
    """Of its first record: the partition's last stable one."""
    since: int | None
    """The time of that record, ms since the epoch."""
    producer: OpenProducer | None
    """None where the brokers do not tell."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The upstream offsets [start, end) that a partition's log holds."""

    start: int
    end: int


class KafkaOffsets:
    """The positions of one cluster. Every method raises Retriable when the cluster does not answer."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        self._cluster = cluster
        self._flow = flow
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        quiet = {"log_level": 0, "socket.timeout.ms": int(ANSWER_SECONDS * 1000)}
        self._records = KafkaRecords(cluster, flow=flow, client_role="operator", options=quiet)
        self._groups = KafkaGroups(cluster, flow=flow)

    def partitions(self) -> dict[str, int]:
        """Every topic with its number of partitions."""
        found = self._records.partitions(_within(ANSWER_SECONDS))
        return {topic: count for topic, count in found.items() if count}  # of a topic without a leader it is not known

    def extents(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Extent]:
        """The extent of each partition; one that does not exist is left out."""
        return {place: Extent(start, end) for place, (start, _, end) in self._ends(partitions).items()}

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The offset that a group has committed; None when it has not."""
        answered = self._groups.committed([group], _within(ANSWER_SECONDS))
        if group not in answered:
            raise Retriable(f"the committed offsets of group {group} cannot be read", where=self._where)
        found = answered[group].get((topic, partition))
        return None if found is None else found.offset

    def oldest_waiting(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """When the oldest record was written that stands at or after a position, by place.

        Returns:
            ms since the epoch; None where no record waits: only transaction markers and aborted records follow. What
            could not be read in time, or may not be read, is left out.
        """
        if not positions:
            return {}
        return KafkaPeek(self._cluster, flow=self._flow, seconds=ANSWER_SECONDS).first_timestamps(positions)

    def open_transactions(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, OpenTransaction]:
        """The first open transaction of each partition that has one.

        Args:
            ends: of the logs, by place.
        """
        begins = {place: stable for place, (_, stable, _) in self._ends(ends).items() if stable < ends[place]}
        if not begins:
            return {}
        peek = KafkaPeek(self._cluster, flow=self._flow, seconds=ANSWER_SECONDS, committed=False)
        since = peek.first_timestamps(begins)
        producers: dict[TopicPartition, OpenProducer] = {}
        with suppress(Retriable), closing(WireCluster(self._cluster, flow=self._flow, client_role="operator")) as wire:
            producers = open_producers(wire, begins, _within(ANSWER_SECONDS))
        return {
            place: OpenTransaction(offset=offset, since=since.get(place), producer=producers.get(place))
            for place, offset in begins.items()
        }

    def record_from(self, place: TopicPartition, offset: int) -> Record | None:
        """The first record at or after an offset, as `read_committed` readers see it; None where none follows."""
        return KafkaPeek(self._cluster, flow=self._flow, seconds=2 * ANSWER_SECONDS).record_from(place, offset)

    def sample(self, topic: str, count: int, *, oldest: bool = False) -> list[tuple[int, Record]]:
        """Some of a topic's records, as `read_committed` readers see them, each with its partition.

        Args:
            topic: where; its partitions share the count.
            count: of records at most; fewer where many markers and aborted records stand at the end.
            oldest: from the beginnings of the logs, and not from their ends.
        """
        ends = self._ends([(topic, partition) for partition in range(self.partitions().get(topic, 0))])
        logs = sorted((stable - start, start, place) for place, (start, stable, _) in ends.items() if start < stable)
        shares: dict[TopicPartition, int] = {}
        ranges: dict[TopicPartition, Range] = {}
        for done, (size, start, place) in enumerate(logs):
            if share := min(size, -(-count // (len(logs) - done))):
                look = size if oldest else min(size, 2 * share + LOOK_BACK[0])
                shares[place], ranges[place] = share, (start + (0 if oldest else size - look), start + size)
            count -= share
        peek = KafkaPeek(self._cluster, flow=self._flow, seconds=2 * ANSWER_SECONDS)
        found = peek.records(ranges, enough=shares if oldest else {})
        return [
            (place[1], record)
            for place, share in sorted(shares.items())
            for record in (found[place][:share] if oldest else found[place][-share:])
        ]

    def newest(self, topic: str, *, key: bytes | None = None) -> int | None:
        """When the last record of partition 0 was written, ms since the epoch; of those with this key, if one is given.

        None when the topic is not there, or the record is not among its last few thousand offsets.
        """
        place = (topic, 0)
        extent = self.extents([place]).get(place)
        if extent is None or extent.start == extent.end:
            return None
        peek = KafkaPeek(self._cluster, flow=self._flow, seconds=ANSWER_SECONDS)
        for back in LOOK_BACK:
            first = max(extent.start, extent.end - back)
            found = peek.last_timestamp(place, first, extent.end, key=key)
            if found is not None or first == extent.start:
                return found
        return None

    def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnds]:
        found, failures = self._records.found_ends(partitions, _within(ANSWER_SECONDS))
        if failures:
            raise Retriable(f"the cluster did not list its offsets: {first_cause(failures)}", where=self._where)
        return found


def _within(seconds: float) -> Deadline:
    """A deadline for an answer after so long, with what every deadline keeps for its error."""
    return deadline_in(seconds + MARGIN_SECONDS)


class KafkaPeek:
    """One look at one cluster."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, seconds: float, committed: bool = True) -> None:
        """Nothing is opened yet.

        Args:
            cluster: to look at.
            flow: part of the name that brokers log.
            seconds: how long the look may take in all.
            committed: whether it sees what read_committed readers see.
        """
        self._log = KafkaLog(cluster, flow=flow, tuning=LOOK if committed else uncommitted(LOOK))
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._deadline = deadline_in(seconds)

    def first_timestamps(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The timestamp of the first record at or after an offset, for each place.

        Args:
            places: the offset to begin at, by place.

        Returns:
            ms since the epoch; None where no visible record follows. Places that did not show anything in time, or
            that may not be read, are left out.
        """
        found: dict[TopicPartition, int | None] = {}
        for part in self._read({place: (offset, TO_THE_END) for place, offset in places.items()}):
            if part.records:
                found[part.place] = part.records[0].timestamp
                part.over = True  # what else a partition holds is not wanted
            elif part.over and part.failure is None:
                found[part.place] = None
        return found

    def record_from(self, place: TopicPartition, offset: int) -> Record | None:
        """The first record at or after an offset; None where none follows.

        Raises:
            Retriable: nothing was seen in time, or the cluster refuses.
        """
        for part in self._read({place: (offset, TO_THE_END)}):
            if part.failure is not None:
                raise part.failure
            if part.records or part.over:
                return part.records[0] if part.records else None
        raise Retriable(f"no record of {place[0]}-{place[1]} was seen in time", where=self._where)

    def records(
        self, ranges: Mapping[TopicPartition, Range], *, enough: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[Record]]:
        """The records of ranges. Args: enough: after how many of a place no more is read, if it is named.

        Raises:
            Retriable: not all of them were seen in time, they are too large together, or the cluster refuses.
        """
        found: dict[TopicPartition, list[Record]] = {place: [] for place in ranges}
        unread = set(ranges)
        for part in self._read(ranges, size=SAMPLE_BYTES):
            if part.failure is not None:
                raise part.failure
            found[part.place] += part.records
            part.over = part.over or len(found[part.place]) >= enough.get(part.place, MANY)
            if part.over:
                unread.discard(part.place)
        if unread:
            what = f"{len(unread)} partitions were not read in time, or hold more than {SAMPLE_BYTES:,} bytes"
            raise Retriable(what, where=self._where, hint="ask for fewer records")
        return found

    def last_timestamp(self, place: TopicPartition, first: int, end: int, *, key: bytes | None = None) -> int | None:
        """The timestamp of the last record of a range.

        Args:
            place: where.
            first: the offset to begin at.
            end: the look is over there, and at the end that readers see.
            key: only records with this key count; None counts all.

        Returns:
            ms since the epoch; None when there is no such record.

        Raises:
            Retriable: the end was not reached in time, or the cluster refuses.
        """
        last: int | None = None
        for part in self._read({place: (first, end)}):
            if part.failure is not None:
                raise part.failure
            last = next((each.timestamp for each in reversed(part.records) if key in {None, each.key}), last)
            if part.over:
                return last
        raise Retriable(f"the end of {place[0]}-{place[1]} was not reached in time", where=self._where)

    def _read(self, ranges: Mapping[TopicPartition, Range], *, size: int = MANY) -> Iterator[RangePart]:
        wanted = {place: [each] for place, each in ranges.items()}
        with closing(self._log):
            yield from read_ranges(self._log, wanted, self._deadline, size=size)
