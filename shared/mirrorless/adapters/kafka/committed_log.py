"""The source's logs, read by ranges of offsets by one warm consumer. See `mirrorless.ports.kafka.CommittedLog`.

A gap is often one transaction marker, so little is fetched at a time; and one partition's answer must not hold up many
in memory, so an answer has one record that is larger than a fetch at most. That is Kafka's own rule: the first batch of
an answer comes whole, however large it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mirrorless.adapters.kafka.client import MARGIN_SECONDS
from mirrorless.adapters.kafka.log import COMMITTED, KafkaLog
from mirrorless.adapters.kafka.log_ranges import Range, read_ranges
from mirrorless.clock import Deadline, deadline_in
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import RangesRead, TopicPartition
from mirrorless.ports.log import BoundedLog
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable

READ_SECONDS: Final = 10.0
"""For one read. What was read by then goes first."""


class KafkaCommittedLog:
    """Implements `CommittedLog` for one execution environment."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the client calls itself in the brokers' logs."""
        self._cluster, self._flow = cluster, flow
        self._log: BoundedLog | None = None

    def read(
        self, ranges: Mapping[TopicPartition, Sequence[Range]], deadline: Deadline, *, near: int, size: int
    ) -> dict[TopicPartition, RangesRead]:
        """See `CommittedLog.read`."""
        # A consumer that an error, a kill or a damaged batch interrupts is not used again.
        log, self._log = self._log or KafkaLog(self._cluster, flow=self._flow, tuning=COMMITTED), None
        soon = deadline_in(min(READ_SECONDS, deadline() - MARGIN_SECONDS))
        read = {place: RangesRead(until=-1) for place in ranges}
        records: dict[TopicPartition, list[Record]] = {place: [] for place in ranges}
        for part in read_ranges(log, ranges, soon, near=near, size=size):
            damage = part.failure if isinstance(part.failure, BatchUnreadable) else None
            if part.failure is not None and damage is None:
                raise part.failure
            (some := records[part.place]).extend(part.records)
            read[part.place] = RangesRead(until=part.until, records=some, log_start=part.log_start, damage=damage)
        if all(each.until >= 0 and each.damage is None for each in read.values()):
            self._log = log
        else:
            log.close()  # after a freeze it may be dead; behind a damaged batch the client makes up where it fetches
        return read
