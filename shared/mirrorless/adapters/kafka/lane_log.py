"""A partition's log, read whole in chunks, by records or by whole batches. See `mirrorless.jobs.copy_task`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

from mirrorless.adapters.kafka.client import wait_left
from mirrorless.adapters.kafka.log import JOB, KafkaLog, Tuning
from mirrorless.adapters.kafka.log_ranges import read_ranges
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import BatchAt, BatchChunk, Chunk, OffsetRange
from mirrorless.jobs.lane_start import gone
from mirrorless.ports.kafka import LogEnds, TopicPartition
from mirrorless.ports.log import BoundedLog

FETCHED_BYTES: Final = 4_000_000
"""In one answer, of whole batches: a task reads one partition, so that nothing else waits for it."""

SILENCE_SECONDS: Final = 30.0
"""Without a record or an end, until the cluster counts as not answering."""


class ChunkedLog:
    """A log of which one range is read at a time. One reading takes it; another one beside it opens its own."""

    def __init__(self, opened: Callable[[], BoundedLog], *, where: str) -> None:
        """Args: opened: makes a log. where: flow and cluster."""
        self._opened, self._where = opened, where
        self._warm: BoundedLog | None = None

    def read(
        self, place: TopicPartition, wanted: OffsetRange, deadline: Deadline
    ) -> Iterator[tuple[Sequence[Any], int]]:
        """What is in a range, and the offset below which all was read, as it comes.

        The deadline is for each part anew, as far as a silent cluster is concerned.

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
            yield from self._parts(log, place, wanted, deadline)
        except GeneratorExit:  # the reader has seen enough
            self._warm = log
            raise
        except BaseException:
            log.close()
            raise
        self._warm = log

    def _parts(
        self, log: BoundedLog, place: TopicPartition, wanted: OffsetRange, deadline: Deadline
    ) -> Iterator[tuple[Sequence[Any], int]]:
        at, heard = wanted.first, time.monotonic()

        def patience() -> float:
            return min(SILENCE_SECONDS, wait_left(deadline)) - (time.monotonic() - heard)

        with closing(read_ranges(log, {place: [(wanted.first, wanted.next)]}, patience)) as parts:
            for part in parts:
                if part.log_start:
                    raise gone(at, f"{self._where} {place[0]}-{place[1]}")
                if part.until > at:
                    at, heard = part.until, time.monotonic()
                    yield part.records, at
                if part.failure is not None:
                    raise part.failure
        if at < wanted.next:
            raise Retriable(f"{place[0]}-{place[1]} @ {at} showed nothing in time", where=self._where)


class KafkaLaneLog:
    """Implements `LaneLog` on the Kafka client: one for each cluster and process."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, tuning: Tuning = JOB) -> None:
        """Args: flow: part of what the clients call themselves in the brokers' logs. tuning: what for."""
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._ends = KafkaRecords(cluster, flow=flow, client_role="job-admin")
        self._log = ChunkedLog(lambda: KafkaLog(cluster, flow=flow, tuning=tuning), where=self._where)

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
        for records, covered in self._log.read((topic, partition), wanted, deadline):
            yield Chunk(list(records), covered)


class KafkaBatchLaneLog:
    """Implements `BatchLog`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the client calls itself in the brokers' logs."""
        self._log = ChunkedLog(
            lambda: KafkaRawLog(cluster, flow=flow, part_bytes=FETCHED_BYTES),
            where=f"{flow} {cluster.alias} at {cluster.bootstrap}",
        )

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[BatchChunk]:
        """See `BatchLog.read`."""
        at = wanted.first
        for batches, covered in self._log.read((topic, partition), wanted, deadline):
            yield BatchChunk([BatchAt(max(each.base_offset, at), each) for each in batches], covered)
            at = covered
