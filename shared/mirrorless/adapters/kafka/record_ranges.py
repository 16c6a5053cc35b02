"""Short ranges of many partitions at once. See `mirrorless.failover.effects.RecordRanges`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from mirrorless.adapters.kafka.client import MARGIN_SECONDS
from mirrorless.adapters.kafka.log import RANGES, KafkaLog
from mirrorless.adapters.kafka.log_ranges import Range, read_ranges
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import Log
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable, RecordBatch


class KafkaRecordRanges:
    """Implements `RecordRanges`; a client for each call."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the client calls itself in the brokers' logs."""
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._cluster, self._flow = cluster, flow

    def ranges(
        self, wanted: Mapping[TopicPartition, Range], deadline: Deadline
    ) -> Iterator[tuple[TopicPartition, list[Record]]]:
        """See `RecordRanges.ranges`."""
        return self._read(KafkaLog(self._cluster, flow=self._flow, tuning=RANGES), wanted, deadline)

    def batches(
        self, wanted: Mapping[TopicPartition, Range], deadline: Deadline
    ) -> Iterator[tuple[TopicPartition, list[RecordBatch]]]:
        """See `RecordRanges.batches`."""
        return self._read(KafkaRawLog(self._cluster, flow=self._flow), wanted, deadline)

    def _read(
        self, log: Log, wanted: Mapping[TopicPartition, Range], deadline: Deadline
    ) -> Iterator[tuple[TopicPartition, list[Any]]]:
        found: dict[TopicPartition, list[Any]] = {place: [] for place in wanted}
        with closing(log):
            for part in read_ranges(
                log, {place: [each] for place, each in wanted.items()}, lambda: deadline() - MARGIN_SECONDS
            ):
                if part.failure is not None and not isinstance(part.failure, BatchUnreadable):
                    raise part.failure
                found[part.place] += part.records
                if part.over:
                    yield part.place, found.pop(part.place)
        if found:
            topic, partition = min(found)
            raise Retriable(f"{topic}-{partition} did not show all in time", where=self._where)
