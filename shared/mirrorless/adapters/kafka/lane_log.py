"""A partition's log, read whole in chunks, by records or by whole batches. See `mirrorless.jobs.copy_task`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from mirrorless.adapters.kafka.client import wait_left
from mirrorless.adapters.kafka.log import JOB, KafkaLog, Tuning
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.chain.run import NO_EPOCH
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, RecordsGone, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import CHUNK_BYTES, CHUNK_RECORDS, BatchAt, BatchChunk, Chunk, OffsetRange
from mirrorless.ports.kafka import LogEnds, TopicPartition
from mirrorless.ports.log import Arrivals, Log

FETCHED_BYTES: Final = 4_000_000
"""In one answer, of whole batches: a task reads one partition, so that nothing else waits for it."""

SILENCE_SECONDS: Final = 30.0
"""Without a record or an end, until the cluster counts as not answering."""

POLL_SECONDS: Final = 0.5
"""What has come goes on if nothing follows for so long."""


class ChunkedLog:
    """A log that is read in chunks. One reading takes it; another one beside it opens a log of its own."""

    def __init__(self, opened: Callable[[], Log], *, where: str, records: int = 2**31, size: int = CHUNK_BYTES) -> None:
        """Args: opened: makes a log. where: flow and cluster. records, size: of a chunk; whichever comes first."""
        self._opened, self._where = opened, where
        self._records, self._size = records, size
        self._warm: Log | None = None

    def read(
        self, place: TopicPartition, wanted: OffsetRange, deadline: Deadline
    ) -> Iterator[tuple[list[Any], int, int]]:
        """What is in a range, the offset below which all was read, and the leader epoch there, chunk by chunk.

        The deadline is for each chunk anew, as far as a silent cluster is concerned.

        Raises:
            Retriable: the cluster does not answer.
            RecordsGone: the log begins above `wanted.first`.
            BatchUnreadable: a batch is damaged; what lies before it was given.
        """
        if wanted.first >= wanted.next:
            return
        # Until the range has been read, another reading must not find this log warm, nor after an error or a kill.
        log, self._warm = self._warm or self._opened(), None
        try:
            yield from self._chunks(log, place, wanted, deadline)
        except GeneratorExit:  # the reader has seen enough
            log.leave([place])
            self._warm = log
            raise
        except BaseException:
            log.close()
            raise
        log.leave([place])
        self._warm = log

    def _chunks(
        self, log: Log, place: TopicPartition, wanted: OffsetRange, deadline: Deadline
    ) -> Iterator[tuple[list[Any], int, int]]:
        where = f"{self._where} {place[0]}-{place[1]}"
        log.follow({place: wanted.first}, {place: wanted.next})
        at, heard = wanted.first, time.monotonic()
        some, begun, size, epoch = list[Any](), at, 0, NO_EPOCH
        while at < wanted.next:
            found = log.arrivals(POLL_SECONDS, records=self._records - len(some), size=self._size - size)
            # A log may end behind the range: what lies between was not taken.
            covered = max(found.covered.get(place, at), min(found.ended.get(place, at), wanted.next))
            if moved := covered > at:
                heard, at = time.monotonic(), covered
                some += found.records.get(place, [])
                size += found.bytes
                epoch = found.epochs.get(place, epoch)
            over = _over(found, place, at, where=where)
            full = size >= self._size or len(some) >= self._records or at >= wanted.next
            if at > begun and (not moved or over is not None or full):
                yield some, at, epoch
                some, begun, size, heard = [], at, 0, time.monotonic()
            if over is not None and at < wanted.next:
                raise over
            if not moved and time.monotonic() - heard >= min(SILENCE_SECONDS, wait_left(deadline)):
                raise Retriable(f"{place[0]}-{place[1]} @ {at} showed nothing in time", where=self._where)


def _over(found: Arrivals, place: TopicPartition, at: int, *, where: str) -> MirrorlessError | None:
    """Why nothing more comes of a partition; None where more comes."""
    if place in found.out_of_range:
        return RecordsGone(
            f"the log does not hold upstream offset {at} any more",
            where=where,
            hint="the source's retention has overtaken the job: start it again from what is left, or from an archive; "
            "what is passed over is listed as lost",
        )
    if (end := found.truncated.get(place)) is not None:
        # What was read and not written may be all that is gone: whoever reads again holds the log against the chain.
        return Retriable(f"the log was cut off at {end}, below what was read of it", where=where)
    return found.refused.get(place) or found.unreadable.get(place)


class KafkaLaneLog:
    """Implements `LaneLog` on the Kafka client: one for each cluster and process."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, tuning: Tuning = JOB) -> None:
        """Args: flow: part of what the clients call themselves in the brokers' logs. tuning: what for."""
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._ends = KafkaRecords(cluster, flow=flow, client_role="job-admin")
        self._log = ChunkedLog(
            lambda: KafkaLog(cluster, flow=flow, tuning=tuning), where=self._where, records=CHUNK_RECORDS
        )

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:
        """See `LaneLog.bounds`."""
        start, stable, _ = self._log_ends(topic, partition, deadline)
        return OffsetRange(start, stable)

    def end(self, topic: str, partition: int, deadline: Deadline) -> int:
        """See `mirrorless.verify.parts.TargetLog.end`."""
        return self._log_ends(topic, partition, deadline)[2]

    def _log_ends(self, topic: str, partition: int, deadline: Deadline) -> LogEnds:
        found = self._ends.ends([(topic, partition)], deadline).get((topic, partition))
        if found is None:
            raise Retriable(
                f"there is no {topic}-{partition}, or it has no leader now",
                where=self._where,
                hint="check the topic's name, and that the job may Describe and Read it",
            )
        return found

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:
        """See `LaneLog.read`."""
        for records, covered, epoch in self._log.read((topic, partition), wanted, deadline):
            yield Chunk(records, covered, epoch)


class KafkaBatchLaneLog:
    """Implements `BatchLog`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        """The log of a cluster's partitions, one after the other.

        Args:
            cluster: to read.
            flow: part of what the client calls itself in the brokers' logs.
            chunk_bytes: of a chunk, about.
        """
        self._log = ChunkedLog(
            lambda: KafkaRawLog(cluster, flow=flow, part_bytes=min(FETCHED_BYTES, chunk_bytes // 2)),
            where=f"{flow} {cluster.alias} at {cluster.bootstrap}",
            size=chunk_bytes,
        )

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[BatchChunk]:
        """See `BatchLog.read`."""
        at = wanted.first
        for batches, covered, epoch in self._log.read((topic, partition), wanted, deadline):
            yield BatchChunk([BatchAt(max(each.base_offset, at), each) for each in batches], covered, epoch)
            at = covered
