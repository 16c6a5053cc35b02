"""The producer of a lane's records, and the downstream offsets that its delivery reports give.

Traps of confluent-kafka 2.16 and librdkafka 2.16 that this module is built around, all measured:
`produce_batch` drops headers and partitions; keyword arguments cost a microsecond a record; `flush() == 0` does
not mean success, so deliveries are looked at; delivery reports may carry made-up offsets, so none below 0 or
out of order is believed (settle.py); after any timeout the instance may hang or answer `_CONFLICT`, so it is
thrown away; `close()` waits without bound, so it is never called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, ThrottleEvent

from mirrorless.adapters.kafka.besides import Besides
from mirrorless.adapters.kafka.client import (
    MARGIN_SECONDS,
    TurnedAway,
    seconds_left,
    slow_hint,
    translated,
    wait_left,
)
from mirrorless.adapters.kafka.delivery_reports import REFUSALS, Reports, Watch
from mirrorless.clock import Deadline
from mirrorless.errors import NotAcknowledged, Retriable
from mirrorless.ports.kafka import Delivery, TopicPartition
from mirrorless.records.record import Record, size_of

BATCH_BYTES, BATCH_RECORDS = 1_000_000, 10_000
"""librdkafka's own `batch.size`, before compression, and `batch.num.messages`."""
ONE_BY_ONE = 1
"""`batch.num.messages` of a careful writer."""
LOOK_EVERY_S = 0.002
NO_PROGRESS_S = 0.2
"""Without an acknowledgement, before `flush` takes over."""
FRAMING = 64
"""Bytes of a record's lengths and of its share of the batch's own fields, about."""
PATIENCE_S = 1.0
"""Of a new producer, before it looks whether it was turned away."""
FLUSH_S = 0.25
"""Between two looks at the reports."""
ABORT_S = 2.0
"""Of one call, before the next."""
NO_PARTITION = 2**31 - 1
"""Of any topic."""
_TIMED_OUT = (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)  # noqa: SLF001 -- their names
SAMPLE = 16
"""One record of so many is measured to estimate the size of a lane's records."""


class KafkaWriter:
    """Implements `mirrorless.ports.kafka.Writer` on one confluent-kafka producer."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        transactional_id: str,
        deadline: Deadline,
        watch: Watch | None = None,
        portion: int | None = None,
    ) -> None:
        """Open the producer, and settle whatever an earlier one of the same id left open.

        Args:
            config: librdkafka's settings.
            transactional_id: empty for a writer without transactions.
            deadline: seconds left.
            watch: the lanes that need all reports; None: all lanes do. Without transactions it is not used.
            portion: how many batches of a lane are taken at a time; None: all.

        Raises:
            Retriable: when the cluster does not answer.
        """
        self.transactional_id = transactional_id
        self._watch = watch if transactional_id else None
        self._portion = portion
        self._besides = Besides()
        self.used_at = time.monotonic()
        self._bootstrap = str(config["bootstrap.servers"])
        self._batch = (
            int(config.get("batch.size", BATCH_BYTES)),
            int(config.get("batch.num.messages", BATCH_RECORDS)),
        )
        self._health = _Health(config.get("error_cb"))
        self._unsent = 0
        """Records of the last write that had not left the client's queue, before any of them timed out."""
        # Not a method of ours: the client would hold us and we hold the client, and neither would go when discarded.
        own: dict[str, Any] = {"error_cb": self._health.on_error, "throttle_cb": self._health.on_throttle}
        if transactional_id:
            own["transactional.id"] = transactional_id
        with self._translated("open a producer"):
            self._producer = Producer(dict(config) | own)
            # With all metadata read first, the first transaction is 500 ms faster than with a cold coordinator.
            self._await_metadata(deadline)
            if transactional_id:
                self._producer.init_transactions(seconds_left(deadline))

    @property
    def suspect(self) -> bool:
        """Whether it lost every broker, failed for good, or had a record refused: what it does next is not reliable."""
        return self._health.suspect

    @property
    def throttled_ms(self) -> int:
        """See `Writer.throttled_ms`."""
        return self._health.throttled_ms

    def _await_metadata(self, deadline: Deadline) -> None:
        """Connect. A refused client waits for ever, and gives the reason to its error callback: it is asked for it."""
        seconds = PATIENCE_S
        while True:
            left = seconds_left(deadline)
            until = time.monotonic() + min(seconds, left)
            try:
                self._producer.list_topics(timeout=min(seconds, left))
            except KafkaException:
                self._producer.poll(0)
                self._health.turned_away.check()
                if seconds >= left or time.monotonic() < until:
                    raise
                seconds *= 2  # a slow cluster has to answer within one call
            else:
                return

    def answers(self, deadline: Deadline) -> bool:
        """Whether the cluster still answers through this producer: a cheap probe after a long freeze."""
        try:
            self._producer.list_topics(timeout=min(2.0, seconds_left(deadline)))
        except KafkaException:
            return False  # the caller opens another writer, whose failure is raised
        return True

    def partition_count(self, topic: str, deadline: Deadline) -> int:
        """How many partitions a topic has; 0 when it does not exist."""
        with self._translated("read metadata"):
            found = self._producer.list_topics(topic, timeout=seconds_left(deadline)).topics.get(topic)
        if found is None or (found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            return 0
        if found.error is not None:
            raise Retriable(f"the target does not describe {topic}: {found.error}", where=self._bootstrap)
        return len(found.partitions)

    def write(
        self,
        lanes: Mapping[TopicPartition, Sequence[Record]],
        deadline: Deadline,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[TopicPartition, Delivery]:
        """See `Writer.write`."""
        self.used_at = time.monotonic()
        self._health.turned_away.why = ""
        self._health.throttled_ms = 0
        if self._portion is not None:
            lanes = {p: first_batches(records, self._portion, *self._batch) for p, records in lanes.items()}
        by_record = self._watch is None and self._batch[1] == ONE_BY_ONE
        reports = {
            place: Reports(len(records), by_ends=self._by_ends(place), by_record=by_record)
            for place, records in lanes.items()
        }
        with self._translated("write", _topics(lanes)):
            seconds_left(deadline)  # records that are handed over are sent, whatever time is left
            if self.transactional_id:
                self._producer.begin_transaction()
            for place, records in lanes.items():
                self._enqueue(*place, records, reports[place], deadline)
            self._await_full_batches(lanes.values(), deadline)
            with self._besides.making(meanwhile):
                late = self._flush(reports, deadline)
        if any(each.refusal for each in reports.values()):
            # Sequence numbers were skipped: what this producer writes next was seen to be purged or out of order.
            self._health.suspect = True
            if self.transactional_id:
                # The whole transaction is spoilt, so what the other lanes lack of it was not refused: they go again.
                return {p: Delivery(downstream=each.offsets, refusal=each.refusal) for p, each in reports.items()}
        if any(each.unclear for each in reports.values()):
            return self._look_closer(lanes, reports, late)
        self._require_all(lanes, reports)
        return {place: each.delivery() for place, each in reports.items()}

    def commit(self, deadline: Deadline) -> None:
        """See `Writer.commit`."""
        if self.transactional_id:
            with self._translated("commit"):
                self._producer.commit_transaction(seconds_left(deadline))

    def abort(self, deadline: Deadline) -> None:
        """See `Writer.abort`.

        The client empties its queue as an abort begins. What was under way then and is sent back is queued again,
        nothing sends it, and the abort waits for it: each further call empties the queue once more.
        """
        while self.transactional_id:
            with self._translated("abort"):
                try:
                    self._producer.abort_transaction(min(ABORT_S, wait_left(deadline)))
                except KafkaException as exc:
                    if exc.args[0].code() != KafkaError._TIMED_OUT or deadline() <= MARGIN_SECONDS:  # noqa: SLF001 -- its name
                        raise
                else:
                    return

    def _translated(self, what: str, topics: str = "") -> AbstractContextManager[None]:
        return translated(what, f"{self._bootstrap} {topics}".rstrip(), self._health.turned_away)

    def _by_ends(self, place: TopicPartition) -> bool:
        return self._watch is not None and place not in self._watch

    def _look_closer(
        self,
        lanes: Mapping[TopicPartition, Sequence[Record]],
        reports: Mapping[TopicPartition, Reports],
        late: int,
    ) -> dict[TopicPartition, Delivery]:
        """The ends of some lane were unclear: every report of it is looked at the next time."""
        for place, each in reports.items():
            if each.unclear and self._watch is not None:
                self._watch.begin(place)
            if each.failed is not None:
                self._health.suspect = True
        timed_out = [each for each in reports.values() if each.failed is not None and each.failed.code() in _TIMED_OUT]
        if late or (timed_out and self._unsent):
            self._health.turned_away.check()
            # Records behind a refused one are never sent; the next attempt sees the refusal itself.
            what = f"{late or self._unsent} records were not acknowledged in time"
            unclear = [place for place, each in reports.items() if each.unclear]
            raise NotAcknowledged(
                what,
                where=f"{self._bootstrap} {_topics(unclear)}",
                hint=slow_hint(self.throttled_ms),
                partitions=unclear,
                tried=_bytes(lanes),
                share=self._share(lanes),
            )
        return {place: Delivery(downstream=(), unclear=each.unclear) for place, each in reports.items()}

    def _enqueue(
        self, topic: str, partition: int, records: Sequence[Record], reports: Reports, deadline: Deadline
    ) -> None:
        produce = self._producer.produce
        # Arguments by position: topic, value, key, partition, callback, its other name, timestamp, headers. The
        # callback must stand first: a None there hides an on_delivery behind it, and no report comes at all.
        for record, on_delivery in zip(records, reports.callbacks(), strict=True):
            headers: Any = record.headers or None
            try:
                produce(topic, record.value, record.key, partition, on_delivery, None, record.timestamp, headers)
            except BufferError:
                self._make_room(deadline)
                produce(topic, record.value, record.key, partition, on_delivery, None, record.timestamp, headers)
            except KafkaException as exc:
                # Nothing after it may overtake it.
                if exc.args[0].code() in REFUSALS:
                    # The client itself refuses it.
                    reports.refuse(exc.args[0], next(i for i, each in enumerate(records) if each is record))
                else:
                    # Among the reasons: the broker's refusal of another record, whose report is yet to be served.
                    reports.failed = reports.failed or exc.args[0]
                return

    def _await_full_batches(self, lanes: Iterable[Sequence[Record]], deadline: Deadline) -> None:
        """Wait until each lane has less than a batch left to send, so that `flush` finds nothing under way.

        An idempotent librdkafka has one request of a partition under way, and while `flush` wants another one out its
        thread spins: a fifth of an event's CPU. Nothing depends on this wait; it ends where there is no progress,
        and at the deadline.
        (https://github.com/confluentinc/librdkafka/pull/4989)
        """
        rest = sum(unsent_at_last(records, *self._batch) for records in lanes)
        left, since = len(self._producer), time.monotonic()
        ends = since + wait_left(deadline)
        while left > rest and time.monotonic() < min(since + NO_PROGRESS_S, ends):
            self._producer.poll(LOOK_EVERY_S)
            if (now_left := len(self._producer)) != left:
                left, since = now_left, time.monotonic()

    def _flush(self, reports: Mapping[TopicPartition, Reports], deadline: Deadline) -> int:
        """Wait for all reports, and return how many are missing.

        In a transaction a refusal is enough: the client sends nothing more, and the records behind the refused one
        would be reported only once they time out. Where only the ends of a lane are reported, the transaction's state
        tells of a refusal between them; none of the missing ones is then late, for their lane is only unclear.
        """
        self._unsent = len(self._producer)
        watched = next((place for place, each in reports.items() if each.by_ends and each.missing), None)
        while True:
            left = self._producer.flush(min(FLUSH_S, wait_left(deadline)))
            if not any(each.failed for each in reports.values()):
                self._unsent = left  # what times out leaves the queue at once, too
                if left and watched is not None and self._is_spoilt(watched[0]):
                    self._unsent = 0
                    return 0
            refused = self.transactional_id and any(each.refusal for each in reports.values())
            if not left or refused or deadline() <= MARGIN_SECONDS:
                return left

    def _is_spoilt(self, topic: str) -> bool:
        """Whether the transaction can only be aborted, which the client tells by its answer to a record it never takes.

        No topic has the partition that it is for. The transaction's state is looked at first (`rd_kafka_producev`).
        """
        try:
            self._producer.produce(topic, None, None, NO_PARTITION)
        except KafkaException as exc:
            return bool(exc.args[0].code() == KafkaError._STATE)  # noqa: SLF001 -- the constant's name
        return False

    def _share(self, lanes: Mapping[TopicPartition, Sequence[Record]]) -> float:
        """Of the records of a write that was acknowledged in its time."""
        return 1 - self._unsent / max(1, sum(map(len, lanes.values())))

    def _make_room(self, deadline: Deadline) -> None:
        """The local queue is full: wait until the broker has taken it."""
        if self._producer.flush(wait_left(deadline)):
            raise Retriable("the target takes records too slowly for this batch's deadline", where=self._bootstrap)

    def _require_all(
        self, lanes: Mapping[TopicPartition, Sequence[Record]], reports: Mapping[TopicPartition, Reports]
    ) -> None:
        """See that every record was acknowledged, or refused."""
        lacking = {place: each for place, each in reports.items() if each.refusal is None and each.missing}
        if lacking:
            self._health.turned_away.check()
            (topic, partition), first = next(iter(lacking.items()))
            reason = first.failed.str() if first.failed else "no answer in time"
            more = f", and {len(lacking) - 1} partitions more" if len(lacking) > 1 else ""
            raise NotAcknowledged(
                f"{sum(each.missing for each in lacking.values())} records were not acknowledged: {reason}",
                where=f"{self._bootstrap} {topic}-{partition}{more}",
                hint=slow_hint(self.throttled_ms),
                partitions=lacking,
                tried=_bytes(lanes),
                share=self._share(lanes),
            )
        if self._watch is not None:
            for place, each in reports.items():
                if not each.by_ends:
                    self._watch.seen(place, each.offsets)


def _bytes(lanes: Mapping[TopicPartition, Sequence[Record]]) -> int:
    return sum(size_of(record) for records in lanes.values() for record in records)


def _topics(places: Iterable[TopicPartition]) -> str:
    return ", ".join(sorted({topic for topic, _ in places}))


def unsent_at_last(records: Sequence[Record], batch_bytes: int, batch_records: int) -> int:
    """How few records of a lane are unacknowledged before the last request of them may go out, about.

    Acknowledgements come by whole batches. So this lies half a batch above what does not fill one, and the sizes of
    records may differ from their sample by as much.
    """
    sample = records[::SAMPLE]
    size = sum(len(each.key or b"") + len(each.value or b"") for each in sample)
    of_a_batch = min(batch_records, max(1, batch_bytes * len(sample) // size)) if size else batch_records
    if len(records) <= of_a_batch:
        return len(records)
    return len(records) % of_a_batch + of_a_batch // 2


def first_batches(records: Sequence[Record], count: int, batch_bytes: int, batch_records: int) -> Sequence[Record]:
    """The records of the first batches; a batch has one record at least, however large."""
    batches = size = held = 0
    for i, record in enumerate(records):
        added = size_of(record) + FRAMING
        if not held or held == batch_records or size + added > batch_bytes:
            if batches == count:
                return records[:i]
            batches, size, held = batches + 1, 0, 0
        size, held = size + added, held + 1
    return records


class _Health:
    """Connection errors that the client reported, and its state."""

    def __init__(self, turned_away: TurnedAway | None = None) -> None:
        self.suspect = False
        self.throttled_ms = 0
        self.turned_away = turned_away or TurnedAway("")

    def on_throttle(self, event: ThrottleEvent) -> None:
        self.throttled_ms = max(self.throttled_ms, int(event.throttle_time * 1000))

    def on_error(self, error: KafkaError) -> None:
        self.turned_away(error)
        if error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 -- the constant's name
            self.suspect = True
