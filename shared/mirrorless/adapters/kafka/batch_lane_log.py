"""A partition's log by whole batches, for the proof of runs that were copied so. See `mirrorless.verify.by_batches`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from mirrorless.adapters.kafka.client import wait_left
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.ports.kafka import Deadline
from mirrorless.settings import ClusterSettings
from mirrorless.verify.by_batches import BatchAt, BatchChunk

CHUNK_BYTES: Final = 8_000_000

SILENCE_SECONDS: Final = 30.0
"""Without a batch or an end, until the cluster counts as not answering."""

POLL_SECONDS: Final = 0.5


class KafkaBatchLaneLog:
    """Implements `BatchLog` on one raw log."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the client calls itself in the brokers' logs."""
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._log = KafkaRawLog(cluster, flow=flow)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[BatchChunk]:
        """See `BatchLog.read`. The deadline is for each chunk anew, as far as a silent cluster is concerned."""
        place, at = (topic, partition), wanted.first
        if at >= wanted.next:
            return
        self._log.follow({place: at})
        heard = time.monotonic()
        try:
            while at < wanted.next:
                found = self._log.arrivals(POLL_SECONDS, records=2**31, size=CHUNK_BYTES)
                if place in found.out_of_range:
                    raise RecordsGone("the log begins above", where=f"{self._where} {topic}-{partition} @ {at}")
                if (exc := found.unreadable.get(place)) is not None:
                    raise exc
                covered = max(found.covered.get(place, at), found.ended.get(place, at))
                if covered == at and time.monotonic() - heard >= min(SILENCE_SECONDS, wait_left(deadline)):
                    raise Retriable(f"{topic}-{partition} @ {at} showed nothing in time", where=self._where)
                if covered > at:
                    heard = time.monotonic()
                    batches = [each for each in found.records.get(place, []) if each.base_offset < wanted.next]
                    yield BatchChunk([BatchAt(max(each.base_offset, at), each) for each in batches], covered)
                    at = covered
        finally:
            self._log.leave([place])
