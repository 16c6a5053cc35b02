"""How do records get to the target, and how do their downstream offsets come back? One producer.

Traps of confluent-kafka 2.16 and librdkafka 2.16 that this module is built around, all measured:
`produce_batch` drops headers and partitions; keyword arguments cost a microsecond a record; `flush() == 0` does
not mean success, so every delivery is looked at; delivery reports may carry made-up offsets, so none below 0 or
out of order is believed (settle.py); after any timeout the instance may hang or answer `_CONFLICT`, so it is
thrown away; `close()` waits without bound, so it is never called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mirrorless.adapters.kafka_client import seconds_left, translated
from mirrorless.errors import Retriable
from mirrorless.record import Record
from mirrorless.target import Deadline, Delivery, Refusal

_REFUSALS = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001 -- the constant's name: another record of the batch
    )
)
"""A retry of the same record gets the same answer."""


class KafkaWriter:
    """Implements `mirrorless.target.Writer` on one confluent-kafka producer."""

    def __init__(self, config: Mapping[str, Any], *, transactional_id: str, deadline: Deadline) -> None:
        """Open the producer, and settle whatever an earlier one of the same id left open.

        Args:
            config: librdkafka's settings.
            transactional_id: empty for a writer without transactions.
            deadline: seconds left.

        Raises:
            Retriable: when the cluster does not answer.
        """
        self.transactional_id = transactional_id
        self._health = _Health()
        self.used_at = time.monotonic()
        self._bootstrap = str(config["bootstrap.servers"])
        # Not a method of ours: the client would hold us and we hold the client, and neither would go when discarded.
        own: dict[str, Any] = {"error_cb": self._health.on_error}
        if transactional_id:
            own["transactional.id"] = transactional_id
        with translated("open a producer", self._bootstrap):
            self._producer = Producer(dict(config) | own)
            # Asking for all metadata first makes the first transaction 500 ms faster than finding its coordinator cold.
            self._await_metadata(deadline)
            if transactional_id:
                self._producer.init_transactions(seconds_left(deadline))

    @property
    def suspect(self) -> bool:
        """Whether it lost every broker, failed for good, or had a record refused: what it does next is not reliable."""
        return self._health.suspect

    def _await_metadata(self, deadline: Deadline) -> None:
        """Reach the cluster. A client that was turned away says only that nobody answered, and why to its callback."""
        try:
            self._producer.list_topics(timeout=seconds_left(deadline))
        except KafkaException as exc:
            self._producer.poll(0)
            if not self._health.turned_away:
                raise
            raise Retriable(
                f"the cluster turned us away: {self._health.turned_away}",
                where=self._bootstrap,
                hint="compare the flow's authentication, its secret and its `ca` with what this listener asks for",
            ) from exc

    def answers(self, deadline: Deadline) -> bool:
        """Whether the cluster still answers through this producer: a cheap probe after a long freeze."""
        try:
            self._producer.list_topics(timeout=min(2.0, seconds_left(deadline)))
        except KafkaException:
            return False  # the caller opens another writer, whose failure is raised
        return True

    def partition_count(self, topic: str, deadline: Deadline) -> int:
        """How many partitions a topic has; 0 when it does not exist."""
        with translated("read metadata", self._bootstrap):
            found = self._producer.list_topics(topic, timeout=seconds_left(deadline)).topics.get(topic)
        if found is None or (found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            return 0
        if found.error is not None:
            raise Retriable(f"the target does not describe {topic}: {found.error}", where=self._bootstrap)
        return len(found.partitions)

    def write(self, topic: str, lanes: Mapping[int, Sequence[Record]], deadline: Deadline) -> dict[int, Delivery]:
        """See `Writer.write`."""
        self.used_at = time.monotonic()
        collected = {partition: _Collected() for partition in lanes}
        with translated("write", f"{self._bootstrap} {topic}"):
            if self.transactional_id:
                self._producer.begin_transaction()
            for partition, records in lanes.items():
                self._enqueue(topic, partition, records, collected[partition], deadline)
            self._producer.flush(seconds_left(deadline))
        if any(each.refusal for each in collected.values()):
            # Sequence numbers were skipped: what this producer writes next was seen to be purged or out of order.
            self._health.suspect = True
            if self.transactional_id:
                # The whole transaction is spoilt, so what the other lanes lack of it was not refused: they go again.
                return {
                    partition: Delivery(downstream=c.offsets, refusal=c.refusal) for partition, c in collected.items()
                }
        return {
            partition: self._delivery(topic, partition, lanes[partition], collected[partition]) for partition in lanes
        }

    def commit(self, deadline: Deadline) -> None:
        """See `Writer.commit`."""
        if self.transactional_id:
            with translated("commit", self._bootstrap):
                self._producer.commit_transaction(seconds_left(deadline))

    def abort(self, deadline: Deadline) -> None:
        """See `Writer.abort`."""
        if self.transactional_id:
            with translated("abort", self._bootstrap):
                self._producer.abort_transaction(seconds_left(deadline))

    def _enqueue(
        self, topic: str, partition: int, records: Sequence[Record], collected: _Collected, deadline: Deadline
    ) -> None:
        produce, on_delivery = self._producer.produce, collected.callback()
        # Arguments by position: topic, value, key, partition, callback, its other name, timestamp, headers. The
        # callback must stand first: a None there hides an on_delivery behind it, and no report comes at all.
        for record in records:
            headers: Any = record.headers or None
            try:
                produce(topic, record.value, record.key, partition, on_delivery, None, record.timestamp, headers)
            except BufferError:
                self._make_room(deadline)
                produce(topic, record.value, record.key, partition, on_delivery, None, record.timestamp, headers)
            except KafkaException as exc:
                # Nothing after it may overtake it.
                if exc.args[0].code() in _REFUSALS:
                    # The client itself refuses it.
                    collected.refuse(exc.args[0], next(i for i, each in enumerate(records) if each is record))
                else:
                    # Among the reasons: the broker's refusal of another record, whose report is yet to be served.
                    collected.failed = collected.failed or exc.args[0]
                return

    def _make_room(self, deadline: Deadline) -> None:
        """The local queue is full: wait until the broker has taken it."""
        if self._producer.flush(seconds_left(deadline)):
            raise Retriable("the target takes records too slowly for this batch's deadline", where=self._bootstrap)

    def _delivery(self, topic: str, partition: int, records: Sequence[Record], collected: _Collected) -> Delivery:
        if collected.refusal is not None:
            return Delivery(downstream=collected.offsets, refusal=collected.refusal)
        if len(collected.offsets) != len(records):
            reason = collected.failed.str() if collected.failed else "no answer in time"
            raise Retriable(
                f"{len(collected.offsets)} of {len(records)} records were acknowledged: {reason}",
                where=f"{self._bootstrap} {topic}-{partition}",
            )
        return Delivery(downstream=collected.offsets)


class _Health:
    """What the client told about its connections, and what it has been through."""

    def __init__(self) -> None:
        self.suspect = False
        self.turned_away = ""

    def on_error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):  # noqa: SLF001 -- the constants' names
            self.turned_away = error.str()
        if error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 -- the constant's name
            self.suspect = True


class _Collected:
    """The delivery reports of one partition, in the order in which they came: that of the records."""

    __slots__ = ("failed", "offsets", "refusal")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.refusal: Refusal | None = None
        self.failed: KafkaError | None = None

    def callback(self) -> Callable[[KafkaError | None, Message], None]:
        """What the client calls once per record. It runs ten thousand times an event, hence the local name."""
        acknowledge = self.offsets.append

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                # None is librdkafka's "unknown"; -1 lets settle.py refuse it.
                acknowledge(-1 if (offset := message.offset()) is None else offset)
            elif error.code() in _REFUSALS:
                self.refuse(error, len(self.offsets))
            else:
                self.failed = self.failed or error

        return on_delivery

    def refuse(self, error: KafkaError, index: int) -> None:
        """Only the first refusal counts: what follows it is refused for its sake."""
        self.refusal = self.refusal or Refusal(index=index, detail=error.str())
