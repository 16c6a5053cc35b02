"""The source offsets of MirrorMaker 2 in a topic of Connect's, and the tails of logs that they are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from confluent_kafka import murmur2

from mirrorless.adapters.kafka.log import RANGES, KafkaLog, uncommitted
from mirrorless.adapters.kafka.log_ranges import Range, read_ranges
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.mm2.source_offsets import SourcePartition, decode_offset, encode_offset
from mirrorless.ports.kafka import TopicPartition
from mirrorless.records.record import Record
from mirrorless.verify.copied_end import KeyedRecord

_ROLE: Final = "take-over"


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The newest record of one key."""

    partition: int
    """Of the offsets topic: Connect reads all of them, and one key must not be in two."""
    key: bytes
    last: int | None
    """See `decode_offset`."""


class KafkaSourceOffsets:
    """One offsets topic on a flow's target."""

    def __init__(self, cluster: ClusterSettings, topic: str, *, flow: str) -> None:
        """Args: flow: part of what the clients call themselves in the brokers' logs."""
        self._cluster, self._topic, self._flow = cluster, topic, flow
        self._where = f"{flow} {cluster.alias} {topic}"
        self._records = KafkaRecords(cluster, flow=flow, client_role=_ROLE)

    def _stable_ends(self, deadline: Deadline) -> dict[TopicPartition, tuple[int, int]]:
        """Where its partitions begin, and end for readers who wait for commits.

        Raises:
            ConfigurationError: there is no such topic.
            Retriable: the cluster does not answer, or a partition has no leader.
        """
        count = self._records.partitions(deadline).get(self._topic, 0)
        if not count:
            raise ConfigurationError(
                "the target has no such topic",
                where=self._where,
                hint="name the topic in which the Connect cluster stores offsets (its offset.storage.topic): "
                "--offsets-topic NAME; of another replicator than MirrorMaker 2, plan and take over --from target-tail",
            )
        found = self._records.ends([(self._topic, partition) for partition in range(count)], deadline)
        if len(found) < count:
            raise Retriable("a partition has no leader", where=self._where)
        return {place: (start, stable) for place, (start, stable, _) in found.items()}

    def read(self, deadline: Deadline) -> dict[SourcePartition, StoredOffset]:
        """The newest offset of each key, of all connectors of MirrorMaker.

        Raises:
            ConfigurationError: there is no such topic.
            Retriable: the cluster does not answer, a partition has no leader, or it was not read to its end in time.
        """
        wanted = {place: [each] for place, each in self._stable_ends(deadline).items() if each[0] < each[1]}
        found: dict[SourcePartition, StoredOffset] = {}
        with closing(KafkaLog(self._cluster, flow=self._flow, tuning=RANGES)) as log:
            for (_, partition), record in _read(log, wanted, deadline, where=self._where):
                if record.key is not None and (about := SourcePartition.decode(record.key)) is not None:
                    found[about] = StoredOffset(partition, record.key, decode_offset(record.value))
        return found

    def write(self, offsets: Mapping[SourcePartition, int], deadline: Deadline, *, now: int) -> None:
        """Write the last copied upstream offsets, each where its key is, and wait for every acknowledgement.

        Args:
            offsets: by what they are about.
            deadline: seconds left.
            now: ms since the epoch.

        Raises:
            Retriable: some may not have been written; all may be written again.
        """
        stored, partitions = self.read(deadline), len(self._stable_ends(deadline))
        by_place: dict[int, list[Record]] = {}
        for about, last in offsets.items():
            before = stored.get(about)
            key = about.key() if before is None else before.key
            # As Java's producer places what has none yet.
            partition = murmur2(key, partitions) if before is None else before.partition
            record = Record(offset=-1, timestamp=now, headers=[], key=key, value=encode_offset(last))
            by_place.setdefault(partition, []).append(record)
        for partition, records in sorted(by_place.items()):
            self._records.write_at((self._topic, partition), records, deadline)


def _read(
    log: KafkaLog, wanted: Mapping[TopicPartition, Sequence[Range]], deadline: Deadline, *, where: str
) -> Iterator[tuple[TopicPartition, Record]]:
    """All records of some ranges.

    Raises:
        Retriable: the cluster does not answer, or not all was read in time.
    """
    left = {place for place, ranges in wanted.items() if ranges}
    for part in read_ranges(log, {place: wanted[place] for place in left}, deadline):
        if part.failure is not None:
            raise part.failure
        yield from ((part.place, record) for record in part.records)
        left -= {part.place} if part.over else set()
    if left:
        topic, partition = min(left)
        raise Retriable(f"{topic}-{partition} was not read to its end in time", where=where)


def newest_records(
    cluster: ClusterSettings, topic: str, *, flow: str, at_most: int, deadline: Deadline
) -> Iterator[Record]:
    """The last records of one of MirrorMaker's topics, which have one partition; none where it is not there.

    Raises:
        Retriable: the cluster does not answer, or it was not read to its end in time.
    """
    ends = KafkaRecords(cluster, flow=flow, client_role=_ROLE).ends([(topic, 0)], deadline)
    wanted = {
        place: [(max(start, stable - at_most), stable)] for place, (start, stable, _) in ends.items() if start < stable
    }
    with closing(KafkaLog(cluster, flow=flow, tuning=RANGES)) as log:
        for _, record in _read(log, wanted, deadline, where=f"{flow} {cluster.alias}"):
            yield record


class KafkaTails:
    """Parts of one cluster's logs, as hashes of their records."""

    def __init__(
        self, cluster: ClusterSettings, *, flow: str, committed: bool, seen: Callable[[str, Record], KeyedRecord | None]
    ) -> None:
        """Nothing is opened yet.

        Args:
            cluster: to read.
            flow: part of what the clients call themselves in the brokers' logs.
            committed: whether records of transactions that were aborted, or are open, are left out.
            seen: a topic's record as it is compared; None where it is not.
        """
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._seen = seen
        self._log = KafkaLog(cluster, flow=flow, tuning=RANGES if committed else uncommitted(RANGES))

    def read(
        self, wanted: Mapping[TopicPartition, Sequence[Range]], deadline: Deadline
    ) -> dict[TopicPartition, list[KeyedRecord]]:
        """All records of some ranges, growing and apart.

        Raises:
            Retriable: the cluster does not answer, or a log changed meanwhile.
        """
        found: dict[TopicPartition, list[KeyedRecord]] = {place: [] for place in wanted}
        ranges = {place: [each for each in some if each[0] < each[1]] for place, some in wanted.items()}
        for place, record in _read(self._log, ranges, deadline, where=self._where):
            if (each := self._seen(place[0], record)) is not None:
                found[place].append(each)
        return found

    def close(self) -> None:
        """Close the client."""
        self._log.close()
