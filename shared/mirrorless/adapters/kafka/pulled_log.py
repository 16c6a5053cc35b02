"""The source's logs as a pull reads them. See `mirrorless.pull.log`.

Record by record: one consumer that is assigned partitions and offsets. By whole batches: a raw log under the same port.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, IsolationLevel, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec

from mirrorless.adapters.kafka.admin import LASTING, WarmAdmin, first_cause, offsets_call
from mirrorless.adapters.kafka.client import TurnedAway, consumer_config, seconds_left, translated
from mirrorless.adapters.kafka.messages import unreadable_headers
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.chain.run import NO_EPOCH
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.naming import PULL_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition
from mirrorless.pull.log import Arrivals
from mirrorless.records.record import Headers, Record

ADDED_SECONDS: Final = 10.0
"""Between two questions for a topic's partitions, where one is not known to the client."""

PLACES: Final = 2_000
"""Partitions of one call of the admin client."""

ANSWER_SECONDS: Final = 5.0
"""For a list of all offsets at once, until the admin client takes over."""

QUEUE_KB: Final = 32 * 1024
"""Of what the client fetches ahead, for all partitions together."""

AT_ONCE: Final = 500
"""Messages taken from the client in one call, at most: they are read column by column, and should stay in cache."""

FETCH_BYTES: Final = 1024 * 1024
"""Of one partition in one answer: a backlog of one lane leaves room for the others."""

_FETCH: Final[Mapping[str, Any]] = {
    "group.id": PULL_GROUP,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # below the log's start nothing is to be read in its place
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
    "max.partition.fetch.bytes": FETCH_BYTES,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": QUEUE_KB,
}

_LISTING: Final[Mapping[str, Any]] = {
    "group.id": PULL_GROUP,
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
}

_NO_HEADERS: Final[Headers] = []
"""Of all records without any: nobody writes to a record's headers, and as many lists would cost a fifth of the CPU."""

_FIRST, _SECOND = itemgetter(0), itemgetter(1)

_UNKNOWN: Final = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT})  # noqa: SLF001 -- their names
"""Of one partition, and of all that were asked for."""

_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 -- the constants' names


class KafkaPulledLog:
    """Implements `mirrorless.pull.log.PulledLog`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the clients call themselves in the brokers' logs."""
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._config = consumer_config(cluster, f"{flow}|pull") | dict(_FETCH)
        self._turned_away: TurnedAway = self._config["error_cb"]
        self._listing = consumer_config(cluster, f"{flow}|pull-ends") | dict(_LISTING)
        self._admin = WarmAdmin(cluster, f"{flow}|pull-admin")
        self._lister: Consumer | None = None
        self._consumer: Consumer | None = None
        self._raw = KafkaRawLog(cluster, flow=flow)
        self._damaged: set[TopicPartition] = set()
        """Partitions of which the client goes on behind a damaged batch: nothing more of them is taken."""
        self._shown_at: dict[str, float] = {}
        """When topics were described anew, monotonic seconds."""

    def stable_ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `PulledLog.stable_ends`."""
        wanted = list(places)
        found = self._all_at_once(wanted, deadline)
        rest = [place for place in wanted if place not in found]
        # A list fails as a whole where one partition has no leader, and does not say which.
        return found | (self._offsets(rest, OffsetSpec.latest(), deadline) if rest else {})  # type: ignore[no-untyped-call]  # theirs

    def _all_at_once(self, places: list[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The last stable offsets of partitions, those that one list has; none where it fails.

        By the consumer's search for times, whose time -1 is the end that its isolation level sees: 0.007 ms of CPU a
        partition, where the admin client takes 0.25 for a future of each (measured, 6,000 partitions).
        """
        try:
            if self._lister is None:
                self._lister = Consumer(self._listing)
            asked = [ClientPartition(*place, OFFSET_END) for place in places]
            answers = self._lister.offsets_for_times(asked, timeout=min(ANSWER_SECONDS, seconds_left(deadline)))
        except KafkaException:
            self._lister = None  # after a freeze its connections may be dead
            return {}  # whoever is asked next says why
        return {(at.topic, at.partition): at.offset for at in answers if at.error is None and at.offset >= 0}

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `PulledLog.starts`."""
        return self._offsets(places, OffsetSpec.earliest(), deadline)  # type: ignore[no-untyped-call]  # theirs

    def _offsets(
        self, places: Iterable[TopicPartition], spec: OffsetSpec, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        call = offsets_call(spec, IsolationLevel.READ_COMMITTED)
        answers, failures = self._admin.call_each(places, call, deadline, chunk=PLACES)
        if added := self._show_added(failures, deadline):
            more, failed = self._admin.call_each(added, call, deadline, chunk=PLACES)
            answers |= more
            failures = {place: error for place, error in failures.items() if place not in added} | failed
        passing = [error for error in failures.values() if error.code() not in LASTING]
        if passing and not answers:
            raise Retriable(f"the source did not list its offsets: {first_cause(passing)}", where=self._where)
        return {place: found.offset for place, found in answers.items()}

    def _show_added(self, failures: Mapping[TopicPartition, KafkaError], deadline: Deadline) -> list[TopicPartition]:
        """Let the client see partitions that are newer than what it remembers of their topics, for five minutes."""
        unknown = [place for place, error in failures.items() if error.code() in _UNKNOWN]
        now = time.monotonic()
        due = {topic for topic, _ in unknown if now - self._shown_at.get(topic, -ADDED_SECONDS) >= ADDED_SECONDS}
        for topic in sorted(due):
            self._shown_at[topic] = now
            with self._admin.asked(f"show the partitions of {topic}", self._where) as client:
                client.list_topics(topic, timeout=seconds_left(deadline))
        return [place for place in unknown if place[0] in due]

    def follow(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `PulledLog.follow`."""
        if not offsets:
            return
        with translated("let its partitions be read", self._where):
            if self._consumer is None:
                self._turned_away.why = ""
                self._consumer = Consumer(self._config)
            self._consumer.incremental_assign([ClientPartition(*place, offset) for place, offset in offsets.items()])

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """See `PulledLog.leave`."""
        places = list(places)
        self._damaged -= set(places)
        if self._consumer is not None:
            with translated("let partitions go", self._where):
                self._consumer.incremental_unassign([ClientPartition(*place) for place in places])

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """See `PulledLog.arrivals`.

        The first message is waited for alone: a call for many waits all of its time for as many.
        """
        found = Arrivals()
        consumer = self._consumer
        if consumer is None:
            time.sleep(seconds)  # nothing is followed, so nothing can come
            return found
        with translated("show its records", self._where, self._turned_away):
            first = consumer.poll(seconds)
            if first is None:
                self._turned_away.check()
            messages = [] if first is None else [first]
            while messages:
                messages = self._before_damage(messages, found)
                taken = _sort(messages, found)
                records -= len(messages)
                size -= taken
                if min(records, size) <= 0:
                    break
                fitting = size * len(messages) // max(taken, 1) if taken else AT_ONCE
                messages = consumer.consume(max(1, min(records, AT_ONCE, fitting)), timeout=0)
        return found

    def _before_damage(self, messages: list[Message], found: Arrivals) -> list[Message]:
        """Messages without what follows a damaged batch in its partition."""
        if not self._damaged and not any(map(Message.error, messages)):
            return messages
        left = []
        for message in messages:
            place, error = (message.topic() or "", message.partition() or 0), message.error()
            if place in self._damaged:
                continue
            if error is not None and error.code() == KafkaError._BAD_MSG:  # noqa: SLF001 -- its name
                self._damaged.add(place)
                found.unreadable[place] = self._raw.damage(place, message.offset() or 0)
            else:
                left.append(message)
        return left

    def reading_on(self) -> AbstractContextManager[None]:
        """See `PulledLog.reading_on`: the client's own threads read on at any time."""
        return nullcontext()

    def close(self) -> None:
        """See `PulledLog.close`."""
        consumer, self._consumer = self._consumer, None
        self._damaged.clear()
        if consumer is not None:
            consumer.close()


def _sort(messages: list[Message], found: Arrivals) -> int:
    """Put messages where they belong; the bytes of their records.

    Column by column, because a call from C costs a third of one from Python. Messages of a partition come in runs, most
    often of all that is taken at once.

    Raises:
        KafkaException: an error that does not pass by itself.
    """
    if any(map(Message.error, messages)):
        for message in messages:
            if (error := message.error()) is not None:
                _note(message, error, found)
        messages = [message for message in messages if message.error() is None]
    size = sum(map(len, messages))
    found.bytes += size
    columns: tuple[Iterable[Any], ...] = (  # of a record all are there, and its headers are read back as bytes or None
        map(Message.offset, messages),
        map(_SECOND, map(Message.timestamp, messages)),
        _headers(messages),
        map(Message.key, messages),
        map(Message.value, messages),
    )
    records = map(Record, *columns)
    topics: list[Any] = list(map(Message.topic, messages))
    partitions: list[Any] = list(map(Message.partition, messages))
    if topics and topics.count(topics[0]) == partitions.count(partitions[0]) == len(topics):
        whole: list[Any] = found.records.setdefault((topics[0], partitions[0]), [])
        whole.extend(records)
        newest = {(topics[0], partitions[0]): messages[-1]}
    else:
        places = list(zip(topics, partitions, strict=True))
        newest = dict(zip(places, messages, strict=True))
        for place, run in groupby(zip(places, records, strict=True), _FIRST):
            own: list[Any] = found.records.setdefault(place, [])
            own.extend(map(_SECOND, run))
    for place, message in newest.items():
        found.epochs[place] = NO_EPOCH if (epoch := message.leader_epoch()) is None else epoch
    return size


def _headers(messages: list[Message]) -> list[Any]:
    found: list[Any] = []
    every = iter(messages)
    while len(found) < len(messages):
        try:
            found.extend(map(Message.headers, every))
        except (SystemError, UnicodeDecodeError):
            found.append(unreadable_headers(messages[len(found)]))
    return [headers or _NO_HEADERS for headers in found]


def _note(message: Message, error: KafkaError, found: Arrivals) -> None:
    place = (message.topic() or "", message.partition() or 0)
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
        found.ended[place] = message.offset() or 0
    elif error.code() in _OUT_OF_RANGE:
        found.out_of_range.add(place)
    elif error.fatal() or not error.retriable():
        raise KafkaException(error)


class KafkaBatchLog(KafkaRawLog):
    """Implements `mirrorless.pull.log.PulledLog` with whole batches in the place of records."""

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:  # type: ignore[override]  # the port's
        """See `PulledLog.arrivals`. How many records there are costs nothing here: bytes limit what is returned."""
        found = super().arrivals(seconds, records=records if records <= 0 else 2**31, size=size)
        return Arrivals(
            records=dict(found.records),
            bytes=found.bytes,
            epochs=found.epochs,
            ended=found.ended,
            out_of_range=found.out_of_range,
            truncated=found.truncated,
            unreadable=found.unreadable,
        )
