"""A partition's log, read whole by one warm consumer. See `mirrorless.jobs.copy_task.LaneLog`.

Measured on librdkafka 2.16: `consume(n, seconds)` waits all of its seconds for n messages, also at the end of a log;
a fetch at the end of one partition delays that of the next by `fetch.wait.max.ms`; and a consumer whose queue was full
once looks at it again only after `fetch.queue.backoff.ms`, a second by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mirrorless.adapters.kafka.client import TurnedAway, consumer_config, translated, wait_left
from mirrorless.adapters.kafka.messages import headers_of, record_of
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.chain.run import NO_EPOCH
from mirrorless.clock import Deadline
from mirrorless.errors import RecordsGone, Retriable
from mirrorless.flow.naming import JOB_GROUP
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import CHUNK_BYTES, CHUNK_RECORDS, Chunk, OffsetRange
from mirrorless.ports.kafka import LogEnds
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable

AT_ONCE = 2_000
"""Records taken from the client in one call, at most."""

WAIT_SECONDS = 0.05
"""For the call to fill up; the end of a log is noticed after this long."""

SILENCE_SECONDS = 30.0
"""Without a record or an end, until the cluster counts as not answering."""

_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 -- the constants' names

_FETCH = {
    "group.id": JOB_GROUP,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # below the log's start nothing is to be read in its place
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 5,
    "max.partition.fetch.bytes": 4 * 1024 * 1024,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32 * 1024,
}


class KafkaLaneLog:
    """Implements `LaneLog` on one consumer and one admin client: one for each cluster and process."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the clients call themselves in the brokers' logs."""
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._config = consumer_config(cluster, f"{flow}|job") | _FETCH
        self._turned_away: TurnedAway = self._config["error_cb"]
        self._ends = KafkaRecords(cluster, flow=flow, client_role="job-admin")
        self._raw = KafkaRawLog(cluster, flow=flow)
        self._damage: BatchUnreadable | None = None
        """Where the reading ends, once what lies before it was given."""
        self._consumer: Consumer | None = None

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:
        """See `LaneLog.bounds`."""
        start, stable, _ = self._log_ends(topic, partition, deadline)
        return OffsetRange(start, stable)

    def end(self, topic: str, partition: int, deadline: Deadline) -> int:
        """See `mirrorless.verify.task.TargetLog.end`."""
        return self._log_ends(topic, partition, deadline)[2]

    def _log_ends(self, topic: str, partition: int, deadline: Deadline) -> LogEnds:
        found = self._ends.ends([(topic, partition)], deadline).get((topic, partition))
        if found is None:
            raise Retriable(
                f"there is no {topic}-{partition}, or it has no leader now",
                where=self._where,
                hint="check the topic's name, and that the job may Describe and Read it",
            )
        return found

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:
        """See `LaneLog.read`. The deadline is for each chunk anew, as far as a silent cluster is concerned."""
        if wanted.first >= wanted.next:
            return
        consumer = self._consumer or self._open()
        # Until the range has been read, another reading must not find this consumer warm.
        self._consumer = None
        self._turned_away.why, self._damage = "", None
        with translated(f"show {topic}-{partition}", self._where, self._turned_away):
            consumer.assign([TopicPartition(topic, partition, wanted.first)])
            at = wanted.first
            while at < wanted.next:
                left = OffsetRange(at, wanted.next)
                records, at, epoch = self._chunk(consumer, (topic, partition), left, deadline)
                if self._damage is not None and not records:
                    raise self._damage
                try:
                    yield Chunk(records, at, epoch)
                except GeneratorExit:  # the reader has seen enough
                    break
            consumer.unassign()
        self._consumer = consumer

    def _open(self) -> Consumer:
        with translated("take a consumer", self._where):
            return Consumer(self._config)

    def _chunk(
        self, consumer: Consumer, place: tuple[str, int], wanted: OffsetRange, deadline: Deadline
    ) -> tuple[list[Record], int, int]:
        """The next records of the range, the upstream offset below which everything was read, and the last epoch."""
        records: list[Record] = []
        epoch = NO_EPOCH
        at, size, silent = wanted.first, 0, 0.0
        room = AT_ONCE
        while self._damage is None and len(records) < CHUNK_RECORDS and size < CHUNK_BYTES and at < wanted.next:
            # Never more than can come: with a count too large by one, the client waits for that record.
            messages = consumer.consume(
                max(1, min(room, CHUNK_RECORDS - len(records), wanted.next - at)), timeout=WAIT_SECONDS
            )
            if not messages:
                silent += WAIT_SECONDS
                if silent >= min(SILENCE_SECONDS, wait_left(deadline)):
                    self._turned_away.check()
                    raise Retriable(f"{place[0]}-{place[1]} @ {at} showed nothing in time", where=self._where)
                if silent >= 10 * WAIT_SECONDS and records:
                    return records, at, epoch
                continue
            silent = 0.0
            plain = _records(messages)
            if plain is None:
                plain, at = self._with_events(messages, place, OffsetRange(at, wanted.next))
            elif plain[-1].offset >= wanted.next:
                plain, at = [each for each in plain if each.offset < wanted.next], wanted.next
            else:
                at = plain[-1].offset + 1
            if plain:
                epoch = _epoch_at(messages, plain[-1].offset)
            records += plain
            size += sum(map(len, messages))
            if records:
                room = max(1, min(AT_ONCE, (CHUNK_BYTES - size) * len(records) // max(1, size)))
        return records, at, epoch

    def _with_events(
        self, messages: list[Message], place: tuple[str, int], wanted: OffsetRange
    ) -> tuple[list[Record], int]:
        """The same where ends and errors stand among the records, up to a batch that is damaged."""
        records: list[Record] = []
        at = wanted.first
        for message in messages:
            error, offset = message.error(), message.offset() or 0
            if error is None:
                if offset >= wanted.next:
                    return records, wanted.next
                records.append(record_of(message))
                at = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
                at = max(at, min(offset, wanted.next))
            elif error.code() in _OUT_OF_RANGE:
                raise RecordsGone(
                    f"the log does not hold upstream offset {max(at, offset)} any more: {error.str()}",
                    where=f"{self._where} {place[0]}-{place[1]}",
                    hint="the source's retention has overtaken the job: start it again from what is left, or from an "
                    "archive; what is passed over is listed as lost",
                )
            elif error.code() == KafkaError._BAD_MSG:  # noqa: SLF001 -- its name
                self._damage = self._raw.damage(place, offset)  # the client goes on behind it
                return records, at
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)
        return records, at


def _epoch_at(messages: list[Message], offset: int) -> int:
    """Of the leader that appended the record at an offset, which is near the end of the messages."""
    found = next(each.leader_epoch() for each in reversed(messages) if each.offset() == offset and each.error() is None)
    return NO_EPOCH if found is None else found


def _records(messages: list[Message]) -> list[Record] | None:
    """The records of messages; None where one of them is an event of the client's instead."""
    try:
        return [
            Record(each.offset(), each.timestamp()[1], headers_of(each), each.key(), each.value())  # type: ignore[arg-type]  # a record's are there
            for each in messages
            if each.error() is None or _raise()
        ]
    except _EventAmongThem:
        return None


class _EventAmongThem(Exception):
    pass


def _raise() -> bool:
    raise _EventAmongThem
