"""Ranges of many partitions: what a log has where lanes have gaps, bounded in time, and all of short ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorless.adapters.kafka.client import MARGIN_SECONDS
from mirrorless.adapters.kafka.log import GAPS, RANGES, KafkaLog, uncommitted
from mirrorless.adapters.kafka.log_ranges import Range, RangePart, read_ranges
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.clock import Deadline, deadline_in
from mirrorless.errors import Retriable
from mirrorless.flow.naming import GAPS_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.lanes.gaps import Cleanup, GapRange, Look, cleanup_of
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import BoundedLog
from mirrorless.records.record import Record, event_bytes
from mirrorless.records.record_batch import BatchUnreadable, RecordBatch

NEAR: Final = 500
"""Upstream offsets between two gaps that are read through: a new range costs a round trip."""

CALL_SECONDS: Final = 3.0
"""For one question to the cluster: heartbeats wait meanwhile, and a source that is gone stays gone for longer."""

LOOK_SECONDS: Final = 2.0
"""For one look. What is not read now is read in the next round."""

LOOK_RECORDS: Final = 100_000
LOOK_BYTES: Final = 32 * 1024 * 1024


class KafkaSourceLog:
    """Implements `mirrorless.lanes.gaps.SourceLog`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, group: str = GAPS_GROUP) -> None:
        """Args: group: in whose name it reads; nothing is committed."""
        self._group = group
        self._cluster, self._flow = cluster, flow
        self._topics = KafkaTopics(cluster, flow=flow, role="gaps-admin")

    def starts(self, places: Sequence[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `SourceLog.starts`."""
        return self._topics.starts(places, deadline_in(CALL_SECONDS, deadline))

    def cleanup(self, topics: Sequence[str], deadline: Deadline) -> dict[str, Cleanup]:
        """See `SourceLog.cleanup`."""
        described, _ = self._topics.configs(topics, deadline_in(CALL_SECONDS, deadline))
        return {topic: cleanup_of({each.name: each.value for each in found}) for topic, found in described.items()}

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> dict[TopicPartition, Look]:
        """See `LogLooks.look`."""
        wanted = {place: some for place, some in ranges.items() if some}
        soon = deadline_in(min(LOOK_SECONDS, deadline() - MARGIN_SECONDS))
        seen = {place: _Seen() for place in wanted}
        tuning = (GAPS if committed else uncommitted(GAPS))._replace(group=self._group)
        with closing(KafkaLog(self._cluster, flow=self._flow, tuning=tuning)) as log:
            for part in read_ranges(log, wanted, soon, near=NEAR, records=LOOK_RECORDS, size=LOOK_BYTES):
                seen[part.place].take(part)
        return {
            place: Look(until=each.until, visible=each.visible, trouble=each.trouble) for place, each in seen.items()
        }


@dataclass(slots=True)
class _Seen:
    """What a look has seen of one partition: not the records."""

    until: int = -1
    visible: dict[int, int] = field(default_factory=dict)
    trouble: str = ""

    def take(self, part: RangePart) -> None:
        if part.log_start:
            part.over = True  # retention was faster than we: the next round reads the log's start again
            return
        self.until = part.until
        self.visible.update((each.offset, event_bytes(each)) for each in part.records)
        if part.failure is not None:
            self.trouble = part.failure.what


class KafkaRecordRanges:
    """Implements `mirrorless.failover.work.RecordRanges`; a client for each call."""

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
        self, log: BoundedLog, wanted: Mapping[TopicPartition, Range], deadline: Deadline
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
