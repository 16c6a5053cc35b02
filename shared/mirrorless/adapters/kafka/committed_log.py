"""The source's logs, read by ranges of offsets by one warm consumer. See `mirrorless.ports.kafka.CommittedLog`.

A gap is often one transaction marker, so little is fetched at a time; and one partition's answer must not hold up many
in memory, so an answer has one record that is larger than `FETCH_BYTES` at most. That is Kafka's own rule: the first
batch of an answer comes whole, however large it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from mirrorless.adapters.kafka.client import TurnedAway, consumer_config, seconds_left, translated
from mirrorless.adapters.kafka.messages import record_of
from mirrorless.adapters.kafka.source_log import joined
from mirrorless.clock import Deadline
from mirrorless.flow.naming import GAPS_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import RangesRead, TopicPartition
from mirrorless.records.record import Record, size_of

if TYPE_CHECKING:
    from mirrorless.records.record_batch import BatchUnreadable

READ_SECONDS: Final = 10.0
"""For one read. What was read by then goes first."""

FETCH_BYTES: Final = 512 * 1024
"""Of one partition in one answer; what lies behind its ranges is fetched for nothing."""

_FETCH: Final[Mapping[str, Any]] = {
    "group.id": GAPS_GROUP,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # below the log's start nothing is to be read in its place
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 5,
    "fetch.max.bytes": 8 * 1024 * 1024,
    "max.partition.fetch.bytes": FETCH_BYTES,
    "queued.max.messages.kbytes": 4 * 1024,
}

_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 -- the constants' names


class KafkaCommittedLog:
    """Implements `CommittedLog` for one execution environment."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the client calls itself in the brokers' logs."""
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._config = consumer_config(cluster, f"{flow}|committed") | dict(_FETCH)
        self._turned_away: TurnedAway = self._config["error_cb"]
        self._consumer: Consumer | None = None
        self._cluster, self._flow = cluster, flow

    def read(
        self,
        ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]],
        deadline: Deadline,
        *,
        near: int,
        size: int,
    ) -> dict[TopicPartition, RangesRead]:
        """See `CommittedLog.read`."""
        readings = {place: _Reading(wanted=wanted, left=joined(wanted, near)) for place, wanted in ranges.items()}
        ends = time.monotonic() + min(READ_SECONDS, seconds_left(deadline))
        # A consumer that an error or a kill interrupts is not used again.
        consumer, self._consumer = self._consumer, None
        self._turned_away.why = ""
        with translated("let its gaps be read", self._where, self._turned_away):
            consumer = consumer or Consumer(self._config)
            consumer.assign([ClientPartition(*place, reading.left[0][0]) for place, reading in readings.items()])
            answers = _read(consumer, readings, ends, size, self._damage)
            if not answers:
                self._turned_away.check()
            consumer.unassign()
        if any(reading.damage is not None for reading in readings.values()):
            consumer.close()  # behind a damaged batch the client fetches at an offset that it made up
        elif answers:
            self._consumer = consumer
        return {place: reading.read() for place, reading in readings.items()}

    def _damage(self, place: TopicPartition, offset: int) -> BatchUnreadable:
        """See `KafkaRawLog.damage`."""
        from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog  # noqa: PLC0415 -- kept out of every cold start

        return KafkaRawLog(self._cluster, flow=self._flow).damage(place, offset)


@dataclass(slots=True, kw_only=True)
class _Reading:
    """How far one partition has been read."""

    wanted: Sequence[tuple[int, int]]
    left: list[tuple[int, int]]
    """Still to be read; the first one is being read."""
    until: int = -1
    log_start: int = 0
    records: list[Record] = field(default_factory=list)
    damage: BatchUnreadable | None = None
    _at: int = 0
    """The range of `wanted` that the next record may be in."""

    def take(self, message: Message) -> int:
        """Keep a record that is wanted; its bytes, or 0 for any other one."""
        offset = message.offset() or 0
        first, following = self.left[0]
        if offset < max(first, self.until):
            return 0  # handed over before the range was read anew
        size = 0
        if offset < following and self._is_wanted(offset):
            self.records.append(record_of(message))
            size = size_of(self.records[-1])
        self.passed(offset + 1)
        return size

    def passed(self, offset: int) -> None:
        """All below this offset was read, of the range that is being read."""
        self.until = max(self.until, min(offset, self.left[0][1]))

    def begin_at(self, log_start: int) -> None:
        """Leave out what lies below the beginning of the log."""
        self.log_start = log_start
        self.left = [(max(first, log_start), following) for first, following in self.left if following > log_start]
        self.until = max(self.until, min(log_start, self.wanted[-1][1]))

    def is_beyond(self, log_start: int, log_end: int) -> bool:
        """Whether a log does not reach to what is wanted next, which is left out then."""
        first = self.left[0][0]
        if log_start > first:
            self.begin_at(log_start)
        elif log_end < first:
            self.passed(log_end)
            self.left.clear()
        else:
            return False
        return True

    def is_late(self, offset: int) -> bool:
        """Whether a fetch was for the range before: behind a damaged batch, at an offset that the client made up."""
        first = self.left[0][0]
        return 0 <= self.until <= first and offset != first

    def read(self) -> RangesRead:
        return RangesRead(until=self.until, records=self.records, log_start=self.log_start, damage=self.damage)

    def _is_wanted(self, offset: int) -> bool:
        while self._at < len(self.wanted) and self.wanted[self._at][1] <= offset:
            self._at += 1
        return self._at < len(self.wanted) and self.wanted[self._at][0] <= offset


def _read(  # noqa: C901, PLR0912 -- one row for each thing that may come
    consumer: Consumer,
    readings: Mapping[TopicPartition, _Reading],
    ends: float,
    size: int,
    damage: Callable[[TopicPartition, int], BatchUnreadable],
) -> bool:
    """Read the ranges of each partition one after the other, and all partitions side by side.

    Returns:
        whether anything came.
    """
    unfinished, answers = set(readings), False
    while unfinished and size > 0 and (left := ends - time.monotonic()) > 0:
        message = consumer.poll(left)  # one at a time: a call for many waits all of its time for as many
        if message is None:
            continue
        answers = True
        place = (message.topic() or "", message.partition() or 0)
        if place not in unfinished:
            continue
        reading, error = readings[place], message.error()
        if error is None:
            size -= reading.take(message)
            if reading.until < reading.left[0][1]:
                continue
            reading.left.pop(0)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
            # A leader that was just elected shows less than it has, and says so to whoever lists its offsets (KIP-207).
            _, high = consumer.get_watermark_offsets(ClientPartition(*place), max(0.1, ends - time.monotonic()))
            if high > (message.offset() or 0):
                continue
            reading.passed(message.offset() or 0)
            reading.left.clear()  # the log ends here, or an open transaction hides the rest
        elif error.code() in _OUT_OF_RANGE:
            low, high = consumer.get_watermark_offsets(ClientPartition(*place), max(0.1, ends - time.monotonic()))
            if not reading.is_beyond(low, high) and not reading.is_late(message.offset() or 0):
                raise KafkaException(error)  # the log has changed meanwhile
        elif error.code() == KafkaError._BAD_MSG:  # noqa: SLF001 -- its name
            bad = damage(place, message.offset() or 0)
            reading.passed(bad.offset)
            if bad.offset < reading.left[0][1]:  # otherwise it lies behind what is wanted
                reading.damage = bad
            reading.left = [] if reading.damage else reading.left[1:]
        elif error.fatal() or not error.retriable():
            raise KafkaException(error)
        else:
            continue
        consumer.incremental_unassign([ClientPartition(*place)])
        if reading.left:
            consumer.incremental_assign([ClientPartition(*place, reading.left[0][0])])
        else:
            unfinished.discard(place)
    return answers
