"""The positions of one cluster, for operators: log ends, group lag, and the age of the first waiting record.

The forwarder does not use it. A look at timestamps is bounded in time, commits nothing, and sees what readers with
`read_committed` see.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec

from mirrorless.adapters.kafka.admin import WarmAdmin, offsets_call
from mirrorless.adapters.kafka.client import MARGIN_SECONDS, consumer_config, translated
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.messages import record_of
from mirrorless.adapters.kafka.wire.cluster import WireCluster
from mirrorless.adapters.kafka.wire.open_transactions import OpenProducer, open_producers
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.naming import LOOK_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition
from mirrorless.records.record import Record

ANSWER_SECONDS = 5.0
"""How long an operator waits for a cluster that may be gone."""

LOOK_BACK = (50, 500, 5_000)
"""Offsets before the end of a topic in which its last record is looked for, one try after the other: commit markers and
other flows' heartbeats stand in between."""

_ABSENT = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 -- the client's public constants look so
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction of any producer behind whose first record no `read_committed` reader sees anything."""

    offset: int
    """Of its first record: the partition's last stable one."""
    since: int | None
    """The time of that record, ms since the epoch."""
    producer: OpenProducer | None
    """None where the brokers do not tell."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The upstream offsets [start, end) that a partition's log holds."""

    start: int
    end: int


class KafkaOffsets:
    """The positions of one cluster. Every method raises Retriable when the cluster does not answer."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        self._cluster = cluster
        self._flow = flow
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        quiet = {"log_level": 0, "socket.timeout.ms": int(ANSWER_SECONDS * 1000)}
        self._admin = WarmAdmin(cluster, f"{flow}|operator", quiet)
        self._groups = KafkaGroups(cluster, flow=flow)

    def partitions(self) -> dict[str, int]:
        """Every topic with its number of partitions."""
        with self._admin.asked("list its topics", self._where) as client:
            topics = client.list_topics(timeout=ANSWER_SECONDS).topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def extents(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Extent]:
        """The extent of each partition; one that does not exist is left out."""
        wanted = list(partitions)
        if not wanted:
            return {}
        starts = self._list(wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # the client ships no type
        ends = self._list(wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # same
        return {key: Extent(starts[key], ends[key]) for key in starts if key in ends}

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The offset that a group has committed; None when it has not."""
        answered = self._groups.committed([group], _within(ANSWER_SECONDS))
        if group not in answered:
            raise Retriable(f"the committed offsets of group {group} cannot be read", where=self._where)
        found = answered[group].get((topic, partition))
        return None if found is None else found.offset

    def oldest_waiting(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """When the oldest record was written that stands at or after a position, by place.

        Returns:
            ms since the epoch; None where no record waits: only transaction markers and aborted records follow. What
            could not be read in time, or may not be read, is left out.
        """
        if not positions:
            return {}
        return KafkaPeek(self._cluster, flow=self._flow, seconds=ANSWER_SECONDS).first_timestamps(positions)

    def open_transactions(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, OpenTransaction]:
        """The first open transaction of each partition that has one.

        Args:
            ends: of the logs, by place.
        """
        if not ends:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client ships no type
        stable = self._list(list(ends), latest, IsolationLevel.READ_COMMITTED)
        begins = {place: offset for place, offset in stable.items() if offset < ends[place]}
        if not begins:
            return {}
        peek = KafkaPeek(self._cluster, flow=self._flow, seconds=ANSWER_SECONDS, committed=False)
        since = peek.first_timestamps(begins)
        producers: dict[TopicPartition, OpenProducer] = {}
        with suppress(Retriable), closing(WireCluster(self._cluster, flow=self._flow, client_role="operator")) as wire:
            producers = open_producers(wire, begins, _within(ANSWER_SECONDS))
        return {
            place: OpenTransaction(offset=offset, since=since.get(place), producer=producers.get(place))
            for place, offset in begins.items()
        }

    def record_from(self, place: TopicPartition, offset: int) -> Record | None:
        """The first record at or after an offset, as `read_committed` readers see it; None where none follows."""
        return KafkaPeek(self._cluster, flow=self._flow, seconds=2 * ANSWER_SECONDS).record_from(place, offset)

    def newest(self, topic: str, *, key: bytes | None = None) -> int | None:
        """When the last record of partition 0 was written, ms since the epoch; of those with this key, if one is given.

        None when the topic is not there, or the record is not among its last few thousand offsets.
        """
        place = (topic, 0)
        extent = self.extents([place]).get(place)
        if extent is None or extent.start == extent.end:
            return None
        peek = KafkaPeek(self._cluster, flow=self._flow, seconds=ANSWER_SECONDS)
        for back in LOOK_BACK:
            first = max(extent.start, extent.end - back)
            found = peek.last_timestamp(place, first, extent.end, key=key)
            if found is not None or first == extent.start:
                return found
        return None

    def _list(
        self,
        wanted: list[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Mapping[TopicPartition, int]:
        answers, failures = self._admin.call_each(
            wanted, offsets_call(spec, isolation), _within(ANSWER_SECONDS), chunk=len(wanted)
        )
        there: dict[str, int] | None = None
        for (topic, partition), error in failures.items():
            if error.code() in _ABSENT:
                continue
            # If no requested partition has a leader, the client does not say whether they exist.
            if error.code() == KafkaError._NOENT:  # noqa: SLF001 -- same
                there = self.partitions() if there is None else there
                if partition >= there.get(topic, 0):
                    continue
            raise Retriable(f"the cluster did not list its offsets: {error.str()}", where=self._where)
        return {place: each.offset for place, each in answers.items()}


def _within(seconds: float) -> Deadline:
    """A deadline for an answer after so long, with what every deadline keeps for its error."""
    end = time.monotonic() + seconds + MARGIN_SECONDS
    return lambda: end - time.monotonic()


FETCH_BYTES = 65_536
"""Of a partition at a time. One record is wanted of each; the client fetches more where that does not fit."""

AT_ONCE = 500
"""Records taken from the client in one call."""


class KafkaPeek:
    """One look at one cluster."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, seconds: float, committed: bool = True) -> None:
        """Nothing is opened yet.

        Args:
            cluster: to look at.
            flow: part of the name that brokers log.
            seconds: how long the look may take in all.
            committed: whether it sees what read_committed readers see.
        """
        self._config = consumer_config(cluster, f"{flow}|operator") | {
            "group.id": LOOK_GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",  # retention has passed the place: the first record that is left counts
            "fetch.wait.max.ms": 50,  # the end of a partition is reported after this long
            "fetch.message.max.bytes": FETCH_BYTES,
            "queued.min.messages": 1,
            # Its queue is always full: of batches larger than a fetch, the broker gives those of one partition at a
            # time, and the next fetch would wait for a second.
            "fetch.queue.backoff.ms": 5,
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

    def record_from(self, place: TopicPartition, offset: int) -> Record | None:
        """The first record at or after an offset; None where none follows.

        Raises:
            Retriable: nothing was seen in time, or the cluster refuses.
        """
        with self._consumer() as consumer, translated(f"show a record of {place[0]}", self._where):
            consumer.assign([ClientPartition(*place, offset)])
            while (records := self._consume(consumer)) is not None:
                for found in records:
                    error = found.error()
                    if error is None:
                        return record_of(found)
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
                        return None
                    if found.topic() is not None:
                        raise KafkaException(error)
        raise Retriable(f"no record of {place[0]}-{place[1]} was seen in time", where=self._where)

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
