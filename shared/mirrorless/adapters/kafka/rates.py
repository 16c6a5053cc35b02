"""Samples of a cluster's topics for a capacity plan: log ends, and the newest records and batches of some partitions.

Nothing is committed, and what readers with `read_committed` do not see is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from mirrorless.adapters.kafka.admin import DENIED
from mirrorless.adapters.kafka.client import consumer_config
from mirrorless.adapters.kafka.messages import headers_of
from mirrorless.adapters.kafka.offsets import AT_ONCE
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.naming import LOOK_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.planning.rates import RecordSample
from mirrorless.ports.kafka import TopicPartition

LIST_SECONDS: Final = 20.0
"""For one list of all ends."""

READ_SECONDS: Final = 20.0
"""For the records of a sample."""

PARTITIONS_AT_ONCE: Final = 500
"""From which records are read together: a fetch brings some 64 KB of each."""

FETCH_BYTES: Final = 65_536

PARTITION_BYTES: Final = 262_144
"""Of records after which a partition has shown enough."""


class KafkaRates:
    """Implements `mirrorless.planning.rates.RateSource`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, read_seconds: float = READ_SECONDS) -> None:
        """Args: flow: part of the name that brokers log. read_seconds: how long records are waited for, in all."""
        self._records = KafkaRecords(cluster, flow=flow, client_role="operator")
        self._read_seconds = read_seconds
        self._cluster, self._flow = cluster, flow
        self._config = consumer_config(cluster, f"{flow}|operator") | {
            "group.id": LOOK_GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "latest",  # retention or a truncation has passed the range: nothing of it is left
            "fetch.wait.max.ms": 50,
            "fetch.message.max.bytes": FETCH_BYTES,
            "log_level": 0,
        }

    def ends(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """See `RateSource.ends`."""
        end = time.monotonic() + LIST_SECONDS
        found = self._records.ends(places, lambda: end - time.monotonic())
        return {place: (start, stable) for place, (start, stable, _) in found.items()}

    def sample(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[str, RecordSample]:
        """See `RateSource.sample`."""
        until = time.monotonic() + self._read_seconds
        found: dict[str, RecordSample] = {}
        places = list(ranges)
        for start in range(0, len(places), PARTITIONS_AT_ONCE):
            part = {place: ranges[place] for place in places[start : start + PARTITIONS_AT_ONCE]}
            for (topic, _), sample in [*self._read(part, until).items(), *self._batches(part, until).items()]:
                found[topic] = _added(found.get(topic, RecordSample()), sample)
        return found

    def _batches(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], until: float
    ) -> dict[TopicPartition, RecordSample]:
        """The batches that ranges lie in. None where brokers do not show whole batches: a plan goes without them."""
        found: dict[TopicPartition, RecordSample] = {}
        log = KafkaRawLog(self._cluster, flow=self._flow, part_bytes=FETCH_BYTES)
        log.follow({place: first for place, (first, _) in ranges.items()})
        waiting = set(ranges)
        try:
            while waiting and (left := until - time.monotonic()) > 0:
                come = log.arrivals(min(1.0, left), records=2**31, size=PARTITION_BYTES * len(ranges))
                for place, batches in come.records.items():
                    size = sum(each.size for each in batches)
                    found[place] = _added(
                        found.get(place, RecordSample()), RecordSample(batches=len(batches), batch_bytes=size)
                    )
                read = {place for place, covered in come.covered.items() if covered >= ranges[place][1]}
                over = read | come.ended.keys() | come.out_of_range | come.truncated.keys() | come.unreadable.keys()
                waiting -= over
                log.leave(over)
        except Retriable:
            return found  # records that were read suffice
        finally:
            log.close()
        return found

    def _read(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], until: float
    ) -> dict[TopicPartition, RecordSample]:
        """What arrives until all ranges are read, or the time is over."""
        found: dict[TopicPartition, RecordSample] = {}
        consumer = Consumer(self._config)
        try:
            consumer.assign([ClientPartition(*place, first) for place, (first, _) in ranges.items()])
            waiting = set(ranges)
            while waiting and (left := until - time.monotonic()) > 0:
                for message in consumer.consume(AT_ONCE, timeout=min(0.2, left)):
                    place = (message.topic() or "", message.partition() or 0)
                    error = message.error()
                    if error is not None:
                        waiting -= _ended(error, place, ranges)
                    elif place in waiting:
                        first, end = ranges[place]
                        offset = message.offset() or 0
                        if offset < end:
                            found[place] = _seen(found.get(place, RecordSample()), message, first)
                        if offset >= end - 1 or found[place].bytes >= PARTITION_BYTES:
                            waiting.discard(place)
                            consumer.pause([ClientPartition(*place)])
        finally:
            consumer.close()
        return found


def _ended(
    error: KafkaError, place: TopicPartition, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> set[TopicPartition]:
    """The partitions of which nothing more comes.

    Raises:
        ConfigurationError: they may not be read.
        Retriable: the cluster does not show them.
    """
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
        return {place}
    if error.code() in DENIED:
        hint = "grant Read on the topic, or give the rates by --rates FILE"
        raise ConfigurationError(f"its records may not be read: {error.str()}", where=place[0], hint=hint)
    if place in ranges:
        raise Retriable(f"its records cannot be read: {error.str()}", where=f"{place[0]}-{place[1]}")
    return set()  # a broker that does not answer for a moment


def _seen(sample: RecordSample, message: Message, first: int) -> RecordSample:
    """A sample with one more record of its partition. What precedes it has been passed, whether records or not."""
    headers = headers_of(message)
    size = len(message.key() or b"") + len(message.value() or b"")
    size += sum(len(name) + len(value or b"") for name, value in headers)
    return RecordSample(
        records=sample.records + 1,
        offsets=(message.offset() or 0) - first + 1,
        bytes=sample.bytes + size,
        largest=max(sample.largest, size),
    )


def _added(one: RecordSample, other: RecordSample) -> RecordSample:
    return RecordSample(
        records=one.records + other.records,
        offsets=one.offsets + other.offsets,
        bytes=one.bytes + other.bytes,
        largest=max(one.largest, other.largest),
        batches=one.batches + other.batches,
        batch_bytes=one.batch_bytes + other.batch_bytes,
    )
