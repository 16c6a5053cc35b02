"""Timestamps of the first record at or after an offset and of the last record, by one short-lived consumer.

For operators: a look is bounded in time, commits nothing, and sees what readers with `read_committed` see.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from mirrorless.adapters.kafka.client import client_config, translated
from mirrorless.errors import Retriable
from mirrorless.naming import LOOK_GROUP
from mirrorless.ports.kafka import TopicPartition
from mirrorless.settings import ClusterSettings

FETCH_BYTES = 65_536
"""Of a partition at a time. One record is wanted of each; the client fetches more where that does not fit."""

AT_ONCE = 500
"""Records taken from the client in one call."""


class KafkaPeek:
    """One look at one cluster."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, seconds: float) -> None:
        """Args: flow: part of the name that brokers log. seconds: how long the look may take in all."""
        self._config = client_config(cluster, f"{flow}|operator") | {
            "group.id": LOOK_GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",  # retention has passed the place: the first record that is left counts
            "fetch.wait.max.ms": 50,  # the end of a partition is reported after this long
            "fetch.message.max.bytes": FETCH_BYTES,
            "queued.min.messages": 1,
            "log_level": 0,
        }
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._end = time.monotonic() + seconds

    def first_timestamps(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The timestamp of the first record at or after an offset, for each place.

        Args:
            places: the offset to begin at, by place.

        Returns:
            ms since the epoch; None where no visible record follows. Places that did not show anything in time, or
            that may not be read, are left out.
        """
        found: dict[TopicPartition, int | None] = {}
        with self._consumer() as consumer:
            consumer.assign(
                [ClientPartition(topic, partition, offset) for (topic, partition), offset in places.items()]
            )
            waiting = set(places)
            while waiting:
                records = self._consume(consumer)
                if records is None:
                    break
                done = []
                for record in records:
                    place = (record.topic() or "", record.partition() or 0)
                    if place not in waiting:
                        continue
                    error = record.error()
                    if error is None:
                        found[place] = record.timestamp()[1]
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
                        found[place] = None
                    waiting.discard(place)
                    done.append(ClientPartition(*place))
                consumer.pause(done)  # what else a partition holds is not wanted
        return found

    def last_timestamp(self, place: TopicPartition, first: int, end: int, *, key: bytes | None = None) -> int | None:
        """The timestamp of the last record from an offset on.

        Args:
            place: where.
            first: the offset to begin at.
            end: the look is over behind it, and at the end that readers see; what is written meanwhile may count.
            key: only records with this key count; None counts all.

        Returns:
            ms since the epoch; None when there is no such record.

        Raises:
            Retriable: the end was not reached in time, or the cluster refuses.
        """
        last: int | None = None
        with self._consumer() as consumer, translated(f"show the end of {place[0]}", self._where):
            consumer.assign([ClientPartition(*place, first)])
            while (records := self._consume(consumer)) is not None:
                for record in records:
                    error = record.error()
                    if error is None:
                        if key is None or record.key() == key:
                            last = record.timestamp()[1]
                        if (record.offset() or 0) >= end - 1:
                            return last
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
                        return last
                    elif record.topic() is not None:
                        raise KafkaException(error)
        raise Retriable(f"the end of {place[0]}-{place[1]} was not reached in time", where=self._where)

    def _consume(self, consumer: Consumer) -> list[Message] | None:
        """What has arrived; None when the time is over."""
        left = self._end - time.monotonic()
        return consumer.consume(AT_ONCE, timeout=min(0.1, left)) if left > 0 else None

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(self._config)
        try:
            yield consumer
        finally:
            consumer.close()
