"""A cluster's logs by the Kafka client, record by record. See `mirrorless.ports.log`; by whole batches: `wire.raw_log`.

Measured on librdkafka 2.16: `consume(n, seconds)` waits all of its seconds for n messages, also at the end of a log; a
fetch at the end of one partition delays that of the next by `fetch.wait.max.ms`; and a consumer whose queue was full
once looks at it again only after `fetch.queue.backoff.ms`, a second by default.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, IsolationLevel, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec

from mirrorless.adapters.kafka.admin import LASTING, WarmAdmin, first_cause, offsets_call
from mirrorless.adapters.kafka.client import TurnedAway, consumer_config, seconds_left, translated
from mirrorless.chain.run import NO_EPOCH
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.naming import GAPS_GROUP, JOB_GROUP, LOOK_GROUP, PULL_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import NOTHING_MORE, Arrivals
from mirrorless.records.record import NOT_TEXT, Headers, Record
from mirrorless.records.record_batch import BatchUnreadable

ADDED_SECONDS: Final = 10.0
"""Between two questions for a topic's partitions, where one is not known to the client."""

PLACES: Final = 2_000
"""Partitions of one call of the admin client."""

ANSWER_SECONDS: Final = 5.0
"""For a list of all offsets at once, until the admin client takes over."""

AT_ONCE: Final = 500
"""Messages taken from the client in one call, at most: they are read column by column, and should stay in cache."""


class Tuning(NamedTuple):
    """What a consumer is for."""

    role: str
    """What the clients call themselves in the brokers' logs, behind the flow."""
    group: str
    """In whose name they read; nothing is committed."""
    fetch: Mapping[str, Any]
    """Of the client's settings, those that differ."""


PULL: Final = Tuning(
    "pull",
    PULL_GROUP,
    {
        "fetch.wait.max.ms": 100,
        "max.partition.fetch.bytes": 1024 * 1024,  # a backlog of one lane leaves room for the others
        "queued.min.messages": 100_000,
        "queued.max.messages.kbytes": 32 * 1024,  # for all partitions together
    },
)

JOB: Final = Tuning(
    "job",
    JOB_GROUP,
    {
        "fetch.wait.max.ms": 20,
        "max.partition.fetch.bytes": 4 * 1024 * 1024,
        "queued.min.messages": 100_000,
        "queued.max.messages.kbytes": 32 * 1024,
    },
)

RANGES: Final = Tuning("failover", JOB_GROUP, {"fetch.wait.max.ms": 20})

LOOK: Final = Tuning(
    "operator",
    LOOK_GROUP,
    {
        "fetch.wait.max.ms": 50,  # the end of a partition is reported after this long
        "max.partition.fetch.bytes": 65_536,  # a few records are wanted of each; the client fetches more if need be
        # Its queue is always full: of batches larger than a fetch, the broker gives those of one partition at a time.
        "queued.min.messages": 1,
        "log_level": 0,
    },
)

WITNESS: Final = Tuning("look", LOOK_GROUP, {"fetch.wait.max.ms": 50})

GAPS: Final = Tuning(
    "gaps",
    GAPS_GROUP,
    {
        "fetch.wait.max.ms": 50,
        "max.partition.fetch.bytes": 256 * 1024,  # a gap is often one offset, and more is fetched for nothing
        "queued.max.messages.kbytes": 16 * 1024,
    },
)

COMMITTED: Final = Tuning(
    "committed",
    GAPS_GROUP,
    {
        "fetch.wait.max.ms": 50,
        "fetch.max.bytes": 8 * 1024 * 1024,
        "max.partition.fetch.bytes": 512 * 1024,  # what lies behind its ranges is fetched for nothing
        "queued.max.messages.kbytes": 4 * 1024,
    },
)


def uncommitted(tuning: Tuning) -> Tuning:
    """The same for a reader that sees what was aborted, and what is not committed yet."""
    return tuning._replace(fetch=dict(tuning.fetch) | {"isolation.level": "read_uncommitted"})


_FETCH: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # below the log's start nothing is to be read in its place
    "fetch.queue.backoff.ms": 5,
}

_LISTING: Final[dict[str, Any]] = {"enable.auto.commit": False, "isolation.level": "read_committed"}

_NO_HEADERS: Final[Headers] = []
"""Of all records without any: nobody writes to a record's headers, and as many lists would cost a fifth of the CPU."""

_UNREADABLE: Final[Headers] = [(NOT_TEXT, None)]
"""Of a record whose header has a name that is not UTF-8, for which the client has no answer: no plan writes it."""

_FIRST, _SECOND = itemgetter(0), itemgetter(1)

_UNKNOWN: Final = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT})  # noqa: SLF001 -- their names
"""Of one partition, and of all that were asked for."""

_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 -- the constants' names


class KafkaLog:
    """Implements `mirrorless.ports.log.Log`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, tuning: Tuning) -> None:
        """Nothing is opened yet.

        Args:
            cluster: to read.
            flow: part of what the clients call themselves in the brokers' logs.
            tuning: what for.
        """
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._cluster, self._flow = cluster, flow
        client, group = f"{flow}|{tuning.role}", {"group.id": tuning.group}
        self._config = consumer_config(cluster, client) | group | _FETCH | dict(tuning.fetch)
        self._turned_away: TurnedAway = self._config["error_cb"]
        quiet = {name: level for name, level in tuning.fetch.items() if name == "log_level"}
        self._listing = consumer_config(cluster, f"{client}-ends") | group | _LISTING | quiet
        self._admin = WarmAdmin(cluster, f"{client}-admin", quiet)
        self._lister: Consumer | None = None
        self._consumer: Consumer | None = None
        self._below: dict[TopicPartition, int] = {}
        """Offsets behind what is wanted of a partition."""
        self._begun: dict[TopicPartition, int] = {}
        """By partition that was left and is followed again, and of which nothing has come since: from where."""
        self._left: set[TopicPartition] = set()
        """Partitions that were followed since the consumer was opened, and are not assigned to it now."""
        self._damaged: set[TopicPartition] = set()
        """Partitions of which the client goes on behind a damaged batch: nothing more of them is taken."""
        self._shown_at: dict[str, float] = {}
        """When topics were described anew, monotonic seconds."""

    def stable_ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `Log.stable_ends`."""
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
        """See `Log.starts`."""
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

    def follow(self, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int] = NOTHING_MORE) -> None:
        """See `Log.follow`."""
        if not offsets:
            return
        self._below |= below
        self._begun |= {place: offset for place, offset in offsets.items() if place in self._left}
        self._left.difference_update(offsets)
        with translated("let its partitions be read", self._where):
            if self._consumer is None:
                self._turned_away.why = ""
                self._consumer = Consumer(self._config)
            self._consumer.incremental_assign([ClientPartition(*place, offset) for place, offset in offsets.items()])

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """See `Log.leave`."""
        places = list(places)
        self._damaged.difference_update(places)
        for place in places:
            self._below.pop(place, None)
            self._begun.pop(place, None)
        with translated("let partitions go", self._where):
            self._unassign(places)

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:
        """See `Log.arrivals`.

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
                left = messages
                if self._damaged or any(map(Message.error, messages)):
                    left = self._without_events(messages, found)
                taken = self._sort(left, found)
                records -= len(messages)
                size -= taken
                if min(records, size) <= 0:
                    break
                fitting = size * len(messages) // max(taken, 1) if taken else AT_ONCE
                messages = consumer.consume(max(1, min(records, AT_ONCE, fitting)), timeout=0)
        return found

    def _without_events(self, messages: list[Message], found: Arrivals) -> list[Message]:
        """The records among messages, without what follows a damaged batch in its partition.

        Raises:
            KafkaException: the client is of no use any more.
        """
        left = []
        for message in messages:
            place, error = (message.topic() or "", message.partition() or 0), message.error()
            if place in self._damaged:
                continue
            if error is None:
                left.append(message)
            elif error.fatal():
                raise KafkaException(error)
            elif message.topic() is not None and not error.retriable():  # others are of the group, or pass
                self._note(place, error, message.offset() or 0, found)
        return left

    def _note(self, place: TopicPartition, error: KafkaError, offset: int, found: Arrivals) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
            found.ended[place] = min(offset, self._below.get(place, offset))
        elif error.code() in _OUT_OF_RANGE:
            # The client goes on behind a damaged batch at an offset that it makes up: where that is not in the log, the
            # refusal may come when the partition is followed again, from elsewhere.
            if offset == self._begun.get(place, offset):
                found.out_of_range.add(place)
        elif error.code() == KafkaError._BAD_MSG:  # noqa: SLF001 -- its name
            self._damaged.add(place)
            found.unreadable[place] = self._damage(place, offset)
        else:
            what = f"the cluster does not show {place[0]}-{place[1]}: {error.str()} ({error.name()})"
            found.refused[place] = Retriable(what, where=self._where)
            found.refused[place].__cause__ = KafkaException(error)

    def _damage(self, place: TopicPartition, offset: int) -> BatchUnreadable:
        """See `KafkaRawLog.damage`."""
        from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog  # noqa: PLC0415 -- kept out of every cold start

        return KafkaRawLog(self._cluster, flow=self._flow).damage(place, offset)

    def _sort(self, messages: list[Message], found: Arrivals) -> int:
        """Put messages where they belong; the bytes of their records.

        Column by column, because a call from C costs a third of one from Python. Messages of a partition come in runs,
        most often of all that is taken at once.
        """
        topics: list[Any] = list(map(Message.topic, messages))
        partitions: list[Any] = list(map(Message.partition, messages))
        alone = topics and topics.count(topics[0]) == partitions.count(partitions[0]) == len(topics)
        places = [] if alone else list(zip(topics, partitions, strict=True))
        newest = {(topics[0], partitions[0]): messages[-1]} if alone else dict(zip(places, messages, strict=True))
        if self._below and (over := {place for place in newest if self._is_over(place, newest[place])}):
            return self._sort_the_last(over, messages, found)
        size = sum(map(len, messages))
        found.bytes += size
        # Of a record all are there, and its headers are read back as bytes or None.
        columns: tuple[Iterable[Any], ...] = (
            map(Message.offset, messages),
            map(_SECOND, map(Message.timestamp, messages)),
            _headers(messages),
            map(Message.key, messages),
            map(Message.value, messages),
        )
        records = map(Record, *columns)
        if alone:
            found.records.setdefault((topics[0], partitions[0]), []).extend(records)
        else:
            for place, run in groupby(zip(places, records, strict=True), _FIRST):
                found.records.setdefault(place, []).extend(map(_SECOND, run))
        for place, message in newest.items():
            found.covered[place] = (message.offset() or 0) + 1
            found.epochs[place] = NO_EPOCH if (epoch := message.leader_epoch()) is None else epoch
        if self._begun:
            for place in newest:
                self._begun.pop(place, None)
        return size

    def _is_over(self, place: TopicPartition, newest: Message) -> bool:
        """Whether a partition was read as far as it is wanted."""
        return (newest.offset() or 0) + 1 >= self._below.get(place, inf)

    def _sort_the_last(self, over: set[TopicPartition], messages: list[Message], found: Arrivals) -> int:
        """The same where partitions were read as far as they are wanted: they are let go."""
        below = {place: self._below.pop(place) for place in over}
        self._unassign(over)
        wanted = [
            each
            for each in messages
            if (each.offset() or 0) < below.get((each.topic() or "", each.partition() or 0), inf)
        ]
        size = self._sort(wanted, found)
        found.covered |= below
        return size

    def _unassign(self, places: Iterable[TopicPartition]) -> None:
        """Not by a pause: the client keeps it over the next assignment."""
        left = set(places) - self._left
        if self._consumer is not None and left:
            self._left |= left
            self._consumer.incremental_unassign([ClientPartition(*place) for place in left])

    def reading_on(self) -> AbstractContextManager[None]:
        """See `Log.reading_on`: the client's own threads read on at any time."""
        return nullcontext()

    def close(self) -> None:
        """See `Log.close`."""
        consumer, self._consumer = self._consumer, None
        for kept in (self._below, self._begun, self._left, self._damaged):
            kept.clear()
        if consumer is not None:
            consumer.close()


def _headers(messages: list[Message]) -> list[Any]:
    found: list[Any] = []
    every = iter(messages)
    while len(found) < len(messages):
        try:
            found.extend(map(Message.headers, every))
        except (SystemError, UnicodeDecodeError):
            # The client keeps the list that it has made, with nothing where a name should be: read once more, it would
            # end the process.
            messages[len(found)].set_headers(_UNREADABLE)  # type: ignore[arg-type]  # as it is read back
            found.append(_UNREADABLE)
    return [headers or _NO_HEADERS for headers in found]
