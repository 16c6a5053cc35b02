"""The transactional producer of whole batches: the steps of `mirrorless.ports.kafka.Writer`.

A request (Produce) takes one batch of a partition at most, encoded without touching a payload; so batches of many
partitions go together, and up to five requests are under way to a broker, in order. What was not acknowledged for a
reason that passes is sent again from the first such batch on, with the same sequence numbers: the broker recognises its
last five. Anything else spoils the transaction, which `abort` ends by a new epoch of the producer; its sequence numbers
begin at 0 again.
(https://kafka.apache.org/protocol#The_Messages_Produce)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.besides import Besides
from mirrorless.adapters.kafka.client import slow_hint
from mirrorless.adapters.kafka.delivery_reports import REFUSALS, TOO_LARGE
from mirrorless.adapters.kafka.wire.authentication import TurnedAwayError
from mirrorless.adapters.kafka.wire.cluster import LEADER_MOVED, Backoff, WireCluster, until_of
from mirrorless.adapters.kafka.wire.connection import CONNECT_SECONDS, BrokerConnection, Buffer, ready, take_answers
from mirrorless.adapters.kafka.wire.coordinator import TransactionCoordinator, spoilt
from mirrorless.adapters.kafka.wire.requests import PRODUCE, AnswerReader, string
from mirrorless.clock import Deadline
from mirrorless.errors import NotAcknowledged, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import Delivery, Refusal, TopicPartition
from mirrorless.records.record_batch import RecordBatch, next_sequence, produced

IN_FLIGHT: Final = 5
"""Requests under way to a broker, and so batches of a partition: as many as brokers recognise when they come again."""

PASSING: Final = LEADER_MOVED | {
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}
"""Errors of a batch that a resend may cure."""


@dataclass(slots=True, eq=False)
class BatchQueue:
    """The batches of one partition on their way."""

    place: TopicPartition
    batches: Sequence[RecordBatch]
    sequences: Sequence[int]
    """The first sequence number of each batch."""
    offsets: list[int] = field(default_factory=list)
    """Of the acknowledged ones."""
    sent: int = 0
    """How many were sent and are not to be sent again."""
    under_way: int = 0
    failed: int = 0
    """The error after which it waits until nothing of it is under way, to begin again behind the acknowledged ones."""
    again_at: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    refusal: Refusal | None = None
    trouble: int = 0
    """The last error, for people."""

    @property
    def done(self) -> bool:
        """Whether nothing of it is to be waited for."""
        return len(self.offsets) == len(self.batches) or self.refusal is not None

    @property
    def may_send(self) -> bool:
        """Whether its next batch may go out.

        The first one of an epoch goes alone: a broker that has just become the leader takes any sequence number of a
        producer that is new to it, so that the second would be appended after the first was refused.
        """
        if self.failed or self.sent == len(self.batches) or self.refusal is not None:
            return False
        return self.under_way < (IN_FLIGHT if self.offsets or self.sequences[0] else 1)


_ALL: Final = -1
_OPENING: Final = Struct(">hii")
_COUNT: Final = Struct(">i")
_PART: Final = Struct(">ii")
_ACKNOWLEDGED: Final = Struct(">ihqqqih")
"""Partition, error, base offset, append time, log start; of no record errors and no message, their lengths."""
_NO_ERROR: Final = (0, -1)
WORDS: Final = 3
"""Different texts of one answer that are kept: each record of a batch may have one."""
_ANSWER_BYTES: Final = 16
"""Length, number, count of topics, and the time to leave the broker alone."""


class Acknowledgement(NamedTuple):
    """The answer for one batch."""

    error: int
    base_offset: int
    records: Sequence[int]
    """Those of the batch that were refused, where the broker names them."""
    detail: str


def opening(transactional_id: str) -> bytes:
    """What all requests of a producer begin with."""
    return string(transactional_id)


def produce_request(
    begun: bytes, timeout_ms: int, topics: Sequence[tuple[bytes, Sequence[tuple[int, bytes, memoryview]]]]
) -> list[Buffer]:
    """The parts of a request.

    Args:
        begun: see `opening`.
        timeout_ms: for the replicas to take the batches.
        topics: the name of each topic, encoded, with its partitions; of each the header and the payload of one batch.
    """
    parts: list[Buffer] = []
    head = begun + _OPENING.pack(_ALL, timeout_ms, len(topics))
    for name, partitions in topics:
        head += name + _COUNT.pack(len(partitions))
        for partition, header, payload in partitions:
            head += _PART.pack(partition, len(header) + len(payload)) + header
            parts += (head, payload)
            head = b""
    return parts


def least_answer(topics: Sequence[tuple[bytes, Sequence[tuple[int, bytes, memoryview]]]]) -> int:
    """Bytes of the answer to a request on the wire, its length included: errors make it longer."""
    names = sum(len(name) + _COUNT.size for name, _ in topics)
    return _ANSWER_BYTES + names + sum(len(partitions) for _, partitions in topics) * _ACKNOWLEDGED.size


def read_produced(answer: memoryview) -> tuple[dict[tuple[str, int], Acknowledgement], int]:
    """The answers of all partitions, and how many ms the broker wants to be left alone."""
    found: dict[tuple[str, int], Acknowledgement] = {}
    (topics,) = _COUNT.unpack_from(answer)
    at = 4
    for _ in range(topics):
        following = at + 2 + int.from_bytes(answer[at : at + 2])
        topic = str(answer[at + 2 : following], "utf-8")
        (partitions,) = _COUNT.unpack_from(answer, following)
        at = following + 4
        for _ in range(partitions):
            partition, error, base, _, _, errors, message = _ACKNOWLEDGED.unpack_from(answer, at)
            if (errors, message) == _NO_ERROR:
                found[topic, partition] = Acknowledgement(error, base, (), "")
                at += _ACKNOWLEDGED.size
            else:
                read = AnswerReader(answer[at + _ACKNOWLEDGED.size - 6 :])
                details = [(read.int32(), read.text()) for _ in read.array()]
                words = dict.fromkeys(each for each in (read.text(), *(each for _, each in details)) if each)
                found[topic, partition] = Acknowledgement(
                    error, base, [index for index, _ in details], "; ".join([*words][:WORDS])
                )
                at = len(answer) - read.left
    return found, _COUNT.unpack_from(answer, at)[0]


REQUEST_BYTES: Final = 8_000_000
REQUEST_SECONDS: Final = 30.0
"""Without an answer, until the connection counts as lost."""
LEAST_SECONDS: Final = 2.0
"""Of the same, where the transaction's own end is near."""

KEPT_UNDER_WAY: Final = 2
"""Requests that a broker has while answers to others are waited for: a look at each would cost more than the answer."""
GATHER_SECONDS: Final = 0.02
"""For which several answers are waited for together."""


class RawWriter:
    """One transactional producer. After any exception it must be discarded."""

    def __init__(
        self, cluster: ClusterSettings, *, flow: str, transactional_id: str, timeout_ms: int, deadline: Deadline
    ) -> None:
        """Fence every other producer of the id, and settle what it left open.

        Args:
            cluster: the target.
            flow: part of what it calls itself in the brokers' logs.
            transactional_id: of the producer.
            timeout_ms: the transaction's, by which the coordinator aborts it.
            deadline: seconds left.

        Raises:
            Retriable: the cluster does not answer.
        """
        self.transactional_id = transactional_id
        self.used_at = time.monotonic()
        self.throttled_ms = 0
        """See `Writer.throttled_ms`."""
        self._timeout_ms = timeout_ms
        self._cluster = WireCluster(cluster, flow=flow, client_role="raw-writer")
        self._begun = opening(transactional_id)
        self._besides = Besides()
        self._coordinator = TransactionCoordinator(
            self._cluster, transactional_id=transactional_id, timeout_ms=timeout_ms
        )
        self._next: dict[TopicPartition, int] = {}
        self._ends = 0.0
        with self._cluster.translated("open a producer"):
            self._take_new_epoch(until_of(deadline))

    def close(self) -> None:
        """Close its connections; what is open is aborted by its timeout, or by the next producer of the id."""
        self._cluster.close()

    def write(
        self,
        lanes: Mapping[TopicPartition, Sequence[RecordBatch]],
        deadline: Deadline,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[TopicPartition, Delivery]:
        """Begin a transaction, write all batches and wait for every acknowledgement; more may be written after it.

        Args:
            lanes: batches by partition, in order. They need not have been read from a log: see `packed`.
            deadline: seconds left.
            meanwhile: called once while the last batches are under way, in another thread.

        Returns:
            of each partition, the downstream offset of the first record of each acknowledged batch, in order. A
            refusal names a batch: all before it were taken, and none behind it.

        Raises:
            NotAcknowledged: batches were neither acknowledged nor refused before the deadline, or before the
                transaction times out.
            Retriable: the transaction is spoilt.
        """
        self.used_at = time.monotonic()
        until = until_of(deadline)
        queues = [self._queue(place, some) for place, some in sorted(lanes.items())]
        with self._cluster.translated("write"):
            if not self._coordinator.is_open:
                self.throttled_ms = 0
                self._ends = time.monotonic() + self._timeout_ms / 1000
            until = min(until, self._ends)
            self._begin([queue.place for queue in queues if queue.batches], until)
            self._deliver(queues, until, acknowledged=False)
            with self._besides.making(meanwhile):
                self._deliver(queues, until, acknowledged=True)
        return {queue.place: Delivery(downstream=queue.offsets, refusal=queue.refusal) for queue in queues}

    def commit(self, deadline: Deadline) -> None:
        """Commit the transaction; every batch must have been acknowledged.

        Raises:
            Retriable: the outcome is not known; only the chain has it.
        """
        if not self._coordinator.is_open:
            return
        with self._cluster.translated("commit"):
            self._coordinator.commit(until_of(deadline))

    def abort(self, deadline: Deadline) -> None:
        """Abort the transaction by a new epoch, after which nothing that is still under way is taken.

        Raises:
            Retriable: it may still be open.
        """
        if not self._coordinator.is_open:
            return
        with self._cluster.translated("abort"):
            self._take_new_epoch(until_of(deadline))

    def answers(self, deadline: Deadline) -> bool:
        """Whether the coordinator still answers."""
        try:
            with self._cluster.translated("answer"):
                self._cluster.refresh((), min(until_of(deadline), time.monotonic() + LEAST_SECONDS))
        except Retriable:
            return False  # the caller opens another writer, whose failure is raised
        return True

    def _take_new_epoch(self, until: float) -> None:
        self._coordinator.take_new_epoch(until)
        self._next.clear()

    def _begin(self, places: Collection[TopicPartition], until: float) -> None:
        if not places:
            return
        self._coordinator.add(places, until)
        if unknown := {place[0] for place in places if place not in self._cluster.leaders}:
            self._cluster.refresh_until(unknown, until)  # a transaction is open: all that it has would be lost

    # Batches

    def _queue(self, place: TopicPartition, some: Sequence[RecordBatch]) -> BatchQueue:
        sequences, at = [], self._next.get(place, 0)
        for batch in some:
            sequences.append(at)
            at = next_sequence(at, batch)
        self._next[place] = at
        return BatchQueue(place, some, sequences)

    def _deliver(self, queues: Sequence[BatchQueue], until: float, *, acknowledged: bool) -> None:
        """Send, and receive, until all batches are sent, or acknowledged; at a refusal the transaction is spoilt."""
        by_leader: dict[int, list[BatchQueue]] | None = None
        while not any(queue.refusal for queue in queues):
            if all(queue.done if acknowledged else queue.sent == len(queue.batches) for queue in queues):
                return
            now = time.monotonic()
            if now >= until:
                raise self._late(queues)
            if self._revive(queues, now, until) or by_leader is None:
                by_leader = self._by_leader(queues)
            wake = until
            for node, some in by_leader.items():
                wake = min(wake, self._send(node, some, now, until))
            wake = min([wake, *(queue.again_at for queue in queues if queue.failed and not queue.under_way)])
            if all(queue.sent == len(queue.batches) for queue in queues) and not acknowledged:
                return
            self._receive(wake - time.monotonic(), drain=all(queue.sent == len(queue.batches) for queue in queues))

    def _by_leader(self, queues: Sequence[BatchQueue]) -> dict[int, list[BatchQueue]]:
        found: dict[int, list[BatchQueue]] = {}
        for queue in queues:
            if not queue.done:
                found.setdefault(self._cluster.leader(queue.place).node, []).append(queue)
        return found

    def _revive(self, queues: Sequence[BatchQueue], now: float, until: float) -> bool:
        """Let those begin again whose pause is over; whether there were any."""
        ready_again = [q for q in queues if q.failed and not q.under_way and now >= q.again_at]
        if not ready_again:
            return False
        try:
            self._cluster.refresh({queue.place[0] for queue in ready_again}, min(until, now + LEAST_SECONDS))
        except TurnedAwayError:
            raise
        except OSError:
            for queue in ready_again:
                queue.again_at = time.monotonic() + queue.backoff.pause()
            return False
        for queue in ready_again:
            queue.failed, queue.sent = 0, len(queue.offsets)
        return True

    def _send(self, node: int, queues: list[BatchQueue], now: float, until: float) -> float:
        """Send to one broker what it may have now; when it may have more, if nothing comes from it before."""
        waiting = [queue for queue in queues if queue.may_send]
        if not waiting:
            return until
        try:
            if node < 0:
                raise ConnectionError("there is no leader")
            connection = self._cluster.connection(node, "data", min(until, now + CONNECT_SECONDS))
            while len(connection.pending) < IN_FLIGHT and waiting:
                if connection.muted_until > now:
                    return connection.muted_until
                self._send_one(connection, waiting, until)
                waiting = [queue for queue in waiting if queue.may_send]
            connection.flush()
        except TurnedAwayError:
            raise
        except OSError:
            for queue in waiting:
                if not queue.failed:
                    self._fail(queue, KafkaError.LEADER_NOT_AVAILABLE if node < 0 else KafkaError.NETWORK_EXCEPTION)
            if node >= 0 and (found := self._cluster.data_connection(node)) is not None:
                self._lose(found)
        return until

    def _send_one(self, connection: BrokerConnection, waiting: Sequence[BatchQueue], until: float) -> None:
        """One batch of each, as far as a request goes."""
        left = REQUEST_BYTES
        topics: list[tuple[bytes, list[tuple[int, bytes, memoryview]]]] = []
        last_topic, sent = None, list[tuple[BatchQueue, int]]()
        producer_id, epoch = self._coordinator.producer
        for queue in waiting:
            index = queue.sent
            batch = queue.batches[index]
            left -= batch.size
            if left < 0 and sent:
                break
            topic, partition = queue.place
            if topic != last_topic:
                topics.append((string(topic), []))
                last_topic = topic
            header = produced(
                batch, producer_id=producer_id, producer_epoch=epoch, base_sequence=queue.sequences[index]
            )
            topics[-1][1].append((partition, header, batch.payload))
            sent.append((queue, index))
            queue.sent = index + 1
            queue.under_way += 1
        seconds = max(LEAST_SECONDS, min(REQUEST_SECONDS, until - time.monotonic()))
        parts = produce_request(self._begun, int(seconds * 1000), topics)
        least = least_answer(topics)
        connection.send(PRODUCE, parts, purpose=sent, until=time.monotonic() + seconds, least=least)

    def _receive(self, seconds: float, *, drain: bool) -> None:
        """Take the answers that are there, after waiting for some of them, or for all where nothing is left to send."""
        busy = [each for each in self._cluster.data_connections() if each.pending or each.wants_write]
        if busy:
            seconds = min(seconds, min(each.pending[0].until for each in busy if each.pending) - time.monotonic())
        answering = self._answering(busy, seconds, kept=0 if drain else KEPT_UNDER_WAY)
        take_answers(busy, answering, self._take, self._lose)

    @staticmethod
    def _answering(busy: Sequence[BrokerConnection], seconds: float, *, kept: int) -> list[BrokerConnection]:
        """Connections with answers: with all but so many for a moment, then with any."""
        for each in busy:
            each.await_answers(max(1, len(each.pending) - kept))
        began = time.monotonic()
        found = ready(busy, min(seconds, GATHER_SECONDS))
        if found or seconds <= GATHER_SECONDS:
            return found
        for each in busy:
            each.await_answers(1)
        return ready(busy, seconds - (time.monotonic() - began))

    def _lose(self, connection: BrokerConnection) -> None:
        """What is under way on a connection is sent again on another: the broker recognises what it has."""
        for pending in connection.pending:
            for queue, _ in pending.purpose:
                queue.under_way -= 1
                if not queue.failed:
                    self._fail(queue, KafkaError.NETWORK_EXCEPTION)
        connection.pending.clear()
        self._cluster.drop(connection)

    @staticmethod
    def _fail(queue: BatchQueue, error: int) -> None:
        queue.failed = queue.trouble = error
        queue.again_at = time.monotonic() + queue.backoff.pause()

    def _take(self, connection: BrokerConnection, sent: Sequence[tuple[BatchQueue, int]], answer: memoryview) -> None:
        told, throttle_ms = read_produced(answer)
        if throttle_ms:
            connection.muted_until = time.monotonic() + throttle_ms / 1000
            self.throttled_ms = max(self.throttled_ms, throttle_ms)
        for queue, index in sent:
            queue.under_way -= 1
            each = told.get(queue.place)
            if each is None:
                raise ConnectionError(f"{connection.where} left out {queue.place[0]}-{queue.place[1]} of its answer")
            if queue.failed or queue.refusal:
                # It comes again: what follows a failed batch is out of order for its sake, or was appended after all.
                continue
            if not each.error:
                queue.offsets.append(each.base_offset)
            elif each.error in REFUSALS:
                error, too_large = KafkaError(each.error), each.error in TOO_LARGE
                detail = f"{error.name()}: {error.str()}{each.detail and f': {each.detail}'}"
                queue.refusal = Refusal(
                    index=index, detail=detail, cause=error.name(), records=each.records, too_large=too_large
                )
            elif each.error in PASSING:
                self._fail(queue, each.error)
            else:
                place = f"{queue.place[0]}-{queue.place[1]}"
                raise spoilt("take the batches", each.error, f"{self._cluster.where} {place}")

    def _late(self, queues: Sequence[BatchQueue]) -> NotAcknowledged:
        lacking = [queue for queue in queues if not queue.done]
        (topic, partition), trouble = lacking[0].place, lacking[0].trouble
        reason = KafkaError(trouble).str() if trouble else "no answer in time"
        more = f", and {len(lacking) - 1} partitions more" if len(lacking) > 1 else ""
        count = sum(len(queue.batches) - len(queue.offsets) for queue in lacking)
        written = sum(batch.size for queue in queues for batch in queue.batches)
        taken = sum(batch.size for queue in queues for batch in queue.batches[: len(queue.offsets)])
        return NotAcknowledged(
            f"{count} batches were not acknowledged: {reason}",
            where=f"{self._cluster.where} {topic}-{partition}{more}",
            hint=slow_hint(self.throttled_ms),
            partitions=[queue.place for queue in lacking],
            tried=written,
            share=taken / max(1, written),
        )
