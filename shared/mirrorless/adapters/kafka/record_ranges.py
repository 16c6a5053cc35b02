"""Short ranges of many partitions at once. See `mirrorless.failover.effects.RecordRanges`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from mirrorless.adapters.kafka.client import MARGIN_SECONDS, TurnedAway, consumer_config, translated
from mirrorless.adapters.kafka.messages import record_of
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.naming import JOB_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition as Place
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch

AT_ONCE = 1_000
"""Records taken from the client in one call, at most."""

WAIT_SECONDS = 0.05

_ALL = 2**31

_FETCH = {
    "group.id": JOB_GROUP,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",  # what is gone is then found missing
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 5,
}


class KafkaRecordRanges:
    """Implements `RecordRanges`; a client for each call."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the client calls itself in the brokers' logs."""
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._cluster, self._flow = cluster, flow
        self._config = consumer_config(cluster, f"{flow}|failover") | _FETCH
        self._turned_away: TurnedAway = self._config["error_cb"]

    def ranges(
        self, wanted: Mapping[Place, tuple[int, int]], deadline: Deadline
    ) -> Iterator[tuple[Place, list[Record]]]:
        """See `RecordRanges.ranges`."""
        if not wanted:
            return
        found: dict[Place, list[Record]] = {place: [] for place in wanted}
        with translated("show its records", self._where, self._turned_away):
            consumer = Consumer(self._config)
            try:
                consumer.assign([TopicPartition(*place, first) for place, (first, _) in wanted.items()])
                while found:
                    self._check_time(min(found), deadline)
                    yield from self._poll(consumer, wanted, found)
            finally:
                consumer.close()

    def batches(
        self, wanted: Mapping[Place, tuple[int, int]], deadline: Deadline
    ) -> Iterator[tuple[Place, list[RecordBatch]]]:
        """See `RecordRanges.batches`."""
        found: dict[Place, list[RecordBatch]] = {place: [] for place in wanted}
        log = KafkaRawLog(self._cluster, flow=self._flow)
        try:
            log.follow({place: first for place, (first, _) in wanted.items()})
            while found:
                self._check_time(min(found), deadline)
                come = log.arrivals(WAIT_SECONDS, records=_ALL, size=_ALL)
                for place, some in come.records.items():
                    found[place] += [each for each in some if each.base_offset < wanted[place][1]]
                complete = {place for place, at in come.covered.items() if at >= wanted[place][1]}
                complete |= come.ended.keys() | come.out_of_range | come.truncated.keys() | come.unreadable.keys()
                log.leave(complete)
                for place in complete:
                    yield place, found.pop(place)
        finally:
            log.close()

    def _check_time(self, place: Place, deadline: Deadline) -> None:
        """Raise when a partition has not shown all in time."""
        if deadline() <= MARGIN_SECONDS:
            self._turned_away.check()
            raise Retriable(f"{place[0]}-{place[1]} did not show all in time", where=self._where)

    @staticmethod
    def _poll(
        consumer: Consumer, wanted: Mapping[Place, tuple[int, int]], found: dict[Place, list[Record]]
    ) -> Iterator[tuple[Place, list[Record]]]:
        complete: list[Place] = []
        for message in consumer.consume(AT_ONCE, timeout=WAIT_SECONDS):
            place, offset, error = (
                (message.topic() or "", message.partition() or 0),
                message.offset() or 0,
                message.error(),
            )
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
                if error.fatal() or not error.retriable():
                    raise KafkaException(error)
                continue
            if place not in found:
                continue
            following = wanted[place][1]
            if error is None and offset < following:
                found[place].append(record_of(message))
            if error is not None or offset >= following - 1:
                complete.append(place)
                yield place, found.pop(place)
        if complete:
            consumer.incremental_unassign([TopicPartition(*place) for place in complete])
