"""Reads of the source's log where a lane has a gap, bounded in time, records and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from mirrorless.adapters.kafka.client import MARGIN_SECONDS
from mirrorless.adapters.kafka.log import GAPS, KafkaLog, uncommitted
from mirrorless.adapters.kafka.log_ranges import RangePart, read_ranges
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.clock import Deadline, deadline_in
from mirrorless.flow.naming import GAPS_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.lanes.gaps import Cleanup, GapRange, Look, cleanup_of
from mirrorless.ports.kafka import TopicPartition
from mirrorless.records.record import event_bytes

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
