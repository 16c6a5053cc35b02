"""A partition's log by whole batches: for jobs that copy it so, and for `mirrorless.verify.proof`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from mirrorless.adapters.kafka.client import wait_left
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.chain.run import NO_EPOCH
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, RecordsGone, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import BatchAt, BatchChunk, OffsetRange
from mirrorless.ports.kafka import TopicPartition
from mirrorless.pull.log import RawArrivals

CHUNK_BYTES: Final = 8_000_000
FETCHED_BYTES: Final = 4_000_000
"""In one answer: a task reads one partition, so that nothing else waits for it."""

SILENCE_SECONDS: Final = 30.0
"""Without a batch or an end, until the cluster counts as not answering."""

POLL_SECONDS: Final = 0.5


class KafkaBatchLaneLog:
    """Implements `BatchLog` on one raw log."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        """The log of a cluster's partitions, one after the other.

        Args:
            cluster: to read.
            flow: part of what the client calls itself in the brokers' logs.
            chunk_bytes: of a chunk, about.
        """
        self._chunk_bytes = chunk_bytes
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._log = KafkaRawLog(cluster, flow=flow, part_bytes=min(FETCHED_BYTES, chunk_bytes // 2))

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[BatchChunk]:
        """See `BatchLog.read`. The deadline is for each chunk anew, as far as a silent cluster is concerned."""
        place, at = (topic, partition), wanted.first
        if at >= wanted.next:
            return
        where = f"{self._where} {topic}-{partition}"
        self._log.follow({place: at})
        batches, begun, size, heard = list[BatchAt](), at, 0, time.monotonic()
        epoch = NO_EPOCH
        try:
            while at < wanted.next:
                found = self._log.arrivals(POLL_SECONDS, records=2**31, size=self._chunk_bytes - size)
                covered = max(found.covered.get(place, at), found.ended.get(place, at))
                moved = covered > at
                if moved:
                    heard = time.monotonic()
                    some = (each for each in found.records.get(place, []) if each.base_offset < wanted.next)
                    batches += [BatchAt(max(each.base_offset, at), each) for each in some]
                    at, size = covered, size + found.bytes
                    epoch = found.epochs.get(place, epoch)
                over = _over(found, place, at, where=where)
                if at > begun and (not moved or over is not None or size >= self._chunk_bytes or at >= wanted.next):
                    yield BatchChunk(batches, at, epoch)
                    batches, begun, size, heard = [], at, 0, time.monotonic()
                if over is not None and at < wanted.next:
                    raise over
                if not moved and time.monotonic() - heard >= min(SILENCE_SECONDS, wait_left(deadline)):
                    raise Retriable(f"{topic}-{partition} @ {at} showed nothing in time", where=self._where)
        finally:
            self._log.leave([place])


def _over(found: RawArrivals, place: TopicPartition, at: int, *, where: str) -> MirrorlessError | None:
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
    return found.unreadable.get(place)
