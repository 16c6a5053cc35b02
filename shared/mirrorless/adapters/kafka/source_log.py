"""Reads of the source's log where a lane has a gap, bounded in time, records and bytes."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mirrorless.adapters.kafka.admin import LASTING, Call, WarmAdmin, first_cause, offsets_call
from mirrorless.adapters.kafka.client import MARGIN_SECONDS
from mirrorless.adapters.kafka.log import GAPS, KafkaLog, uncommitted
from mirrorless.adapters.kafka.log_ranges import RangePart, read_ranges
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.naming import GAPS_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.lanes.gaps import Cleanup, GapRange, Look, cleanup_of, event_bytes
from mirrorless.ports.kafka import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

NEAR: Final = 500
"""Upstream offsets between two gaps that are read through: a new range costs a round trip."""

CALL_SECONDS: Final = 3.0
"""For one question to the cluster: heartbeats wait meanwhile, and a source that is gone stays gone for longer."""

LOOK_SECONDS: Final = 2.0
"""For one look. What is not read now is read in the next round."""

LOOK_RECORDS: Final = 100_000
LOOK_BYTES: Final = 32 * 1024 * 1024

KEYS: Final = 1_000
"""Partitions or topics of one call."""

_K = TypeVar("_K", bound=Hashable)


class KafkaSourceLog:
    """Implements `mirrorless.lanes.gaps.SourceLog`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, group: str = GAPS_GROUP) -> None:
        """Args: group: in whose name it reads; nothing is committed."""
        self._group = group
        self._cluster = cluster
        self._flow = flow
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._admin = WarmAdmin(cluster, f"{flow}|gaps-admin")

    def starts(self, places: Sequence[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `SourceLog.starts`."""
        from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415 -- kept out of every cold start

        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # theirs

        found = self._each("list where its logs begin", places, offsets_call(earliest), deadline)
        return {place: each.offset for place, each in found}

    def cleanup(self, topics: Sequence[str], deadline: Deadline) -> dict[str, Cleanup]:
        """See `SourceLog.cleanup`."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # noqa: PLC0415 -- same

        def call(admin: AdminClient, some: list[str], seconds: float) -> dict[str, Future[Any]]:
            resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in some]
            futures = admin.describe_configs(resources, request_timeout=seconds)
            return {resource.name: future for resource, future in futures.items()}

        described = self._each("describe its topics", topics, call, deadline)
        return {topic: cleanup_of({name: it.value for name, it in configs.items()}) for topic, configs in described}

    def _each(self, what: str, keys: Iterable[_K], call: Call[_K], deadline: Deadline) -> Iterable[tuple[_K, Any]]:
        """What the source answers; of what it has not, or does not show, nothing."""
        end = time.monotonic() + CALL_SECONDS
        answers, failures = self._admin.call_each(
            keys, call, lambda: min(deadline(), end - time.monotonic()), chunk=KEYS
        )
        passing = [error for error in failures.values() if error.code() not in LASTING]
        if passing and not answers:
            raise Retriable(f"the source did not {what}: {first_cause(passing)}", where=self._where)
        return answers.items()

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> dict[TopicPartition, Look]:
        """See `LogLooks.look`."""
        wanted = {place: some for place, some in ranges.items() if some}
        end = time.monotonic() + min(LOOK_SECONDS, deadline() - MARGIN_SECONDS)
        seen = {place: _Seen() for place in wanted}
        tuning = (GAPS if committed else uncommitted(GAPS))._replace(group=self._group)
        with closing(KafkaLog(self._cluster, flow=self._flow, tuning=tuning)) as log:
            for part in read_ranges(
                log, wanted, lambda: end - time.monotonic(), near=NEAR, records=LOOK_RECORDS, size=LOOK_BYTES
            ):
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
