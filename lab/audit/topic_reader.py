"""Every visible record of a topic, read to its last stable offset.

A record is kept as its offset and 16 bytes of hash, so that large records by the hundred thousand fit. The end (the
last stable offset) is read first, and reading stops there: nothing is concluded from silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lab.audit.expected_copies import RecordParts
from lab.waiting import wait_for
from mirrorless.adapters.kafka.client import answer
from mirrorless.errors import Retriable
from mirrorless.verify.comparison import RecordAt, content

SETTLED_WITHIN_SECONDS = 60.0
"""Longer than any transaction of the lab may stay open, its coordinator's own interval included."""
SILENT_FOR_SECONDS = 60.0
ANSWER_SECONDS = 10.0

ContentForm = Callable[[RecordParts], RecordParts | None]
"""In which contents are compared; None for a record that is none."""


def as_it_is(record: RecordParts) -> RecordParts:
    """The form of a topic without a rule."""
    return record


def stable_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The end of every partition, once no open transaction hides anything before it. {} when there is no such topic.

    Raises:
        Retriable: a transaction stays open for longer than any should, or the cluster does not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    stable: dict[int, int] = {}
    high: dict[int, int] = {}

    def hidden() -> bool:
        stable.update(_ends(admin, topic, partitions, IsolationLevel.READ_COMMITTED))
        high.update(_ends(admin, topic, partitions, IsolationLevel.READ_UNCOMMITTED))
        return stable != high

    try:
        found = admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic]
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return {}
        partitions = sorted(found.partitions)
        wait_for(hidden, seconds=SETTLED_WITHIN_SECONDS)
    except (KafkaException, TimeoutError) as exc:
        raise Retriable(f"the cluster did not return its ends: {exc}", where=f"{bootstrap} {topic}") from exc
    if stable != high:
        apart = {p: (stable[p], high[p]) for p in partitions if stable[p] != high[p]}
        raise Retriable(
            f"an open transaction hides records: (last stable offset, end) by partition {apart}",
            where=f"{bootstrap} {topic}",
            hint="find the producer that neither commits nor dies (kafka-transactions.sh find-hanging)",
        )
    return stable


def ends(bootstrap: str, topic: str, level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> dict[int, int]:
    """The end of every partition at this moment, or with READ_COMMITTED its last stable offset. {} without the topic.

    Raises:
        Retriable: the cluster does not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        partitions = sorted(admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions)
        return _ends(admin, topic, partitions, level) if partitions else {}
    except (KafkaException, TimeoutError) as exc:
        raise Retriable(f"the cluster did not return its ends: {exc}", where=f"{bootstrap} {topic}") from exc


def read_topic(
    bootstrap: str,
    topic: str,
    ends: Mapping[int, int],
    form: ContentForm = as_it_is,
    *,
    committed: bool = True,
) -> dict[int, list[RecordAt]]:
    """Every record that readers see before `ends`, by partition, in offset order.

    Args:
        bootstrap: the cluster.
        topic: its name there.
        ends: the offset behind the last record of each partition.
        form: of the contents.
        committed: whether records of aborted and open transactions are none.

    Raises:
        Retriable: the cluster fails, or says nothing for a minute before an end is reached.
    """
    seen: dict[int, list[RecordAt]] = {partition: [] for partition in ends}
    unfinished = {partition for partition, end in ends.items() if end > 0}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "audit",  # the client wants one; nothing is ever committed to it
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 8 * 1024 * 1024,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in sorted(unfinished)])
        deadline = time.monotonic() + SILENT_FOR_SECONDS
        while unfinished:
            records = consumer.consume(1000, timeout=0.1)  # it waits that long for a thousand, however many there are
            if records:
                deadline = time.monotonic() + SILENT_FOR_SECONDS
            elif time.monotonic() > deadline:
                left = {partition: ends[partition] for partition in sorted(unfinished)}
                raise Retriable(f"the ends {left} were not reached", where=f"{bootstrap} {topic}")
            for record in records:
                _take(record, ends, seen, unfinished, form)
    except KafkaException as exc:
        raise Retriable(f"the topic cannot be read: {exc}", where=f"{bootstrap} {topic}") from exc
    finally:
        consumer.close()
    return seen


def read_whole(bootstrap: str, topic: str) -> dict[int, list[RecordAt]]:
    """Every visible record of a topic, by partition."""
    return read_topic(bootstrap, topic, stable_ends(bootstrap, topic))


def _take(
    record: Message,
    ends: Mapping[int, int],
    seen: dict[int, list[RecordAt]],
    unfinished: set[int],
    form: ContentForm,
) -> None:
    """Keep a record; strike its partition off when the end is reached."""
    partition, offset, error = record.partition(), record.offset(), record.error()
    if partition is None or offset is None:
        raise KafkaException(error)
    if error is None:
        if offset < ends[partition]:
            key: Any = record.key()
            value: Any = record.value()
            headers: Any = record.headers()
            if (formed := form((key, value, headers or []))) is not None:
                seen[partition].append(RecordAt(offset, content(record.timestamp()[1], *formed)))
    elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 -- the constant's name
        raise KafkaException(error)
    # A partition may end in markers and aborted records, which no reader sees: then only the end itself is reported.
    if offset + (error is None) >= ends[partition]:
        unfinished.discard(partition)


def _ends(admin: AdminClient, topic: str, partitions: list[int], level: IsolationLevel) -> dict[int, int]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client ships no type
    wanted = {TopicPartition(topic, partition): latest for partition in partitions}
    futures = admin.list_offsets(wanted, isolation_level=level, request_timeout=ANSWER_SECONDS)
    return {place.partition: answer(future, lambda: ANSWER_SECONDS).offset for place, future in futures.items()}
