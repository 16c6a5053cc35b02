"""Reads of the source's log where a lane has a gap, bounded in time, records and bytes.

Gaps are mostly transaction markers, a few records apart: ranges that are near each other are read through in one go.
All partitions are read side by side, until each has come to the end of its ranges or a bound is reached.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from mirrorless.adapters.kafka.admin import LASTING, Call, WarmAdmin, first_cause, offsets_call
from mirrorless.adapters.kafka.client import MARGIN_SECONDS, consumer_config, translated
from mirrorless.adapters.kafka.messages import record_of
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

FETCH_BYTES: Final = 256 * 1024
"""Of one partition at a time: a gap is often one offset, and what is fetched beyond it is thrown away."""

KEYS: Final = 1_000
"""Partitions or topics of one call."""

_K = TypeVar("_K", bound=Hashable)

_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 -- the constants' names


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
        """See `SourceLog.look`."""
        readings = {
            place: _Reading(wanted=wanted, through=joined(wanted)) for place, wanted in ranges.items() if wanted
        }
        seconds = min(LOOK_SECONDS, deadline() - MARGIN_SECONDS)
        bound = _Bound(end=time.monotonic() + seconds, records=LOOK_RECORDS, bytes=LOOK_BYTES)
        if not readings:
            return {}
        config = consumer_config(self._cluster, f"{self._flow}|gaps") | {
            "group.id": self._group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # below the log's start nothing is to be read in its place
            "fetch.wait.max.ms": 50,
            "max.partition.fetch.bytes": FETCH_BYTES,
            "queued.max.messages.kbytes": 16 * 1024,
        }
        with translated("let its gaps be read", self._where):
            consumer = Consumer(config)
            try:
                _read(consumer, readings, bound)
            finally:
                consumer.close()
        return {place: reading.seen() for place, reading in readings.items()}


def joined(ranges: Iterable[GapRange], near: int = NEAR) -> list[GapRange]:
    """Ranges, growing, of which those that are near each other have become one."""
    wide: list[GapRange] = []
    for first, following in ranges:
        if wide and first - wide[-1][1] <= near:
            first = wide.pop()[0]  # noqa: PLW2901 -- the wider range takes its place
        wide.append((first, following))
    return wide


@dataclass(slots=True, kw_only=True)
class _Bound:
    """What is left of a look."""

    end: float
    records: int
    bytes: int

    @property
    def holds(self) -> bool:
        return self.records > 0 and self.bytes > 0 and time.monotonic() < self.end


@dataclass(slots=True, kw_only=True)
class _Reading:
    """How far one partition has been read."""

    wanted: Sequence[GapRange]
    through: list[GapRange]
    """Still to be read; the first one is being read."""
    until: int = -1
    visible: dict[int, int] = field(default_factory=dict)
    trouble: str = ""

    def take(self, message: Message) -> bool:
        """Note what came; whether the range that is being read is over."""
        offset, error = message.offset() or 0, message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
            # Retention was faster than we: the next round reads the log's start again.
            self.trouble = "" if error.code() in _OUT_OF_RANGE else error.str()
            self.through.clear()
            return True
        first, following = self.through[0]
        if error is None and first <= offset < following:
            self.until = offset + 1
            if self._is_wanted(offset):
                self.visible[offset] = event_bytes(record_of(message))
        elif offset >= first:
            self.until = max(self.until, min(offset, following))
        if self.until >= following:
            self.through.pop(0)
            return True
        if error is not None:
            self.through.clear()  # its log ends here, or an open transaction hides the rest
            return True
        return False

    def seen(self) -> Look:
        return Look(until=self.until, visible=self.visible, trouble=self.trouble)

    def _is_wanted(self, offset: int) -> bool:
        at = bisect_right(self.wanted, offset, key=lambda each: each[0]) - 1
        return at >= 0 and offset < self.wanted[at][1]


def _read(consumer: Consumer, readings: Mapping[TopicPartition, _Reading], bound: _Bound) -> None:
    """Read the ranges of each partition one after the other, and all partitions side by side."""
    consumer.assign([ClientPartition(*place, reading.through[0][0]) for place, reading in readings.items()])
    unfinished = set(readings)
    while unfinished and bound.holds:
        timeout = max(0.0, min(0.1, bound.end - time.monotonic()))
        for message in consumer.consume(min(500, bound.records), timeout=timeout):
            place = (message.topic() or "", -1 if (partition := message.partition()) is None else partition)
            bound.records -= 1
            bound.bytes -= len(message)
            if place not in unfinished or not readings[place].take(message):
                continue
            # Not by a pause: the client keeps it over the next assignment. What it had handed over already may follow;
            # that is in order too, so it says no more and no less of the next range than what is read there anew.
            consumer.incremental_unassign([ClientPartition(*place)])
            if readings[place].through:
                consumer.incremental_assign([ClientPartition(*place, readings[place].through[0][0])])
            else:
                unfinished.discard(place)
