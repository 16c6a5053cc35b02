"""The transactional producer of whole batches: the steps of `mirrorless.ports.kafka.Writer`.

A request takes one batch of a partition at most, so batches of many partitions go together, and up to five requests
are under way to a broker, in order. What was not acknowledged for a reason that passes is sent again from the first
such batch on, with the same sequence numbers: the broker recognises its last five. Anything else spoils the
transaction, which `abort` ends by a new epoch of the producer; its sequence numbers begin at 0 again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.besides import Besides
from mirrorless.adapters.kafka.wire.authentication import TurnedAwayError
from mirrorless.adapters.kafka.wire.cluster import Backoff, WireCluster, until_of
from mirrorless.adapters.kafka.wire.connection import CONNECT_SECONDS, ApiKey, BrokerConnection, ready
from mirrorless.adapters.kafka.wire.produce import opening, produce_request, read_produced
from mirrorless.adapters.kafka.wire.requests import (
    ADD_PARTITIONS,
    END_TRANSACTION,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    add_partitions,
    end_transaction,
    find_coordinator,
    init_producer_id,
    read_added,
    read_coordinator,
    read_ended,
    read_producer_id,
    string,
)
from mirrorless.errors import NotAcknowledged, Retriable
from mirrorless.ports.kafka import Deadline, Delivery, Refusal, TopicPartition
from mirrorless.record_batch import RecordBatch, next_sequence, produced
from mirrorless.settings import ClusterSettings

IN_FLIGHT: Final = 5
"""Requests under way to a broker, and so batches of a partition: as many as brokers recognise when they come again."""
REQUEST_BYTES: Final = 8_000_000
REQUEST_SECONDS: Final = 30.0
"""Without an answer, until the connection counts as lost."""
LEAST_SECONDS: Final = 2.0
"""Of the same, where the transaction's own end is near."""

_PASSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Errors of a batch that a resend may cure."""

_REFUSALS: Final = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.INVALID_RECORD,
    }
)
"""A resend of the same batch gets the same answer."""

_COORDINATOR_MOVED: Final = frozenset(
    {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_COORDINATOR_PASSING: Final = _COORDINATOR_MOVED | {
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.OPERATION_NOT_ATTEMPTED,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}
_FENCED: Final = frozenset({KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
_SLOW: Final = "if the target is up, it is slow or a quota holds the flow back: raise its `transaction.timeout.ms`"


@dataclass(slots=True, eq=False)
class _Queue:
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
        self._timeout_ms = timeout_ms
        self._cluster = WireCluster(cluster, flow=flow, client_role="raw-writer")
        self._begun = opening(transactional_id)
        self._besides = Besides()
        self._coordinator: int | None = None
        self._producer = (-1, -1)
        self._next: dict[TopicPartition, int] = {}
        self._open = False
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
            if not self._open:
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
        if not self._open:
            return
        body = end_transaction(self.transactional_id, self._producer, commit=True)
        with self._cluster.translated("commit"):
            self._ask_coordinator("commit", END_TRANSACTION, body, read_ended, until_of(deadline))
        self._open = False

    def abort(self, deadline: Deadline) -> None:
        """Abort the transaction by a new epoch, after which nothing that is still under way is taken.

        Raises:
            Retriable: it may still be open.
        """
        if not self._open:
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

    # The coordinator

    def _take_new_epoch(self, until: float) -> None:
        body = init_producer_id(self.transactional_id, self._timeout_ms)

        def error_of(answer: memoryview) -> int:
            error, *producer = read_producer_id(answer)
            if not error:
                self._producer = (producer[0], producer[1])
            return error

        self._ask_coordinator("initialise the producer", INIT_PRODUCER_ID, body, error_of, until)
        self._next.clear()
        self._open = False

    def _begin(self, places: Collection[TopicPartition], until: float) -> None:
        """Add partitions to the transaction. One that does not exist keeps all others out."""
        if not places:
            return
        body = add_partitions(self.transactional_id, self._producer, places)

        def error_of(answer: memoryview) -> int:
            errors = [error for error in read_added(answer).values() if error]
            # Of the others it is said only that they were not tried.
            causes = [error for error in errors if error != KafkaError.OPERATION_NOT_ATTEMPTED]
            return (causes or errors or [0])[0]

        self._open = True  # also where the answer is lost
        self._ask_coordinator("begin a transaction", ADD_PARTITIONS, body, error_of, until)
        if unknown := {place[0] for place in places if place not in self._cluster.leaders}:
            self._cluster.refresh(unknown, until)

    def _ask_coordinator(
        self, what: str, api: ApiKey, body: bytes, error_of: Callable[[memoryview], int], until: float
    ) -> None:
        """Ask until there is an answer that does not pass by itself.

        Raises:
            OSError: the deadline is over.
            Retriable: the answer is an error for good.
        """
        backoff, trouble = Backoff(), "no answer"
        while True:
            try:
                if self._coordinator is None:
                    self._coordinator = self._find_coordinator(until)
                error = error_of(self._cluster.ask(self._coordinator, api, body, until))
            except TurnedAwayError:
                raise
            except OSError as exc:
                trouble, self._coordinator = str(exc), None
            else:
                if not error:
                    return
                trouble = KafkaError(error).str()
                if error not in _COORDINATOR_PASSING:
                    raise self._spoilt(f"{what}", error)
                if error in _COORDINATOR_MOVED:
                    self._coordinator = None
            pause = backoff.pause()
            if time.monotonic() + pause >= until:
                raise TimeoutError(f"the coordinator gave no answer in time, at last: {trouble}")
            time.sleep(pause)

    def _find_coordinator(self, until: float) -> int:
        node = self._cluster.any_node(until)
        answer = self._cluster.ask(node, FIND_COORDINATOR, find_coordinator(self.transactional_id), until)
        error, found, address = read_coordinator(answer)
        if error in _COORDINATOR_PASSING:
            raise ConnectionError(KafkaError(error).str())
        if error:
            raise self._spoilt("show the coordinator", error)
        self._cluster.learn(found, address)
        return found

    # Batches

    def _queue(self, place: TopicPartition, some: Sequence[RecordBatch]) -> _Queue:
        sequences, at = [], self._next.get(place, 0)
        for batch in some:
            sequences.append(at)
            at = next_sequence(at, batch)
        self._next[place] = at
        return _Queue(place, some, sequences)

    def _deliver(self, queues: Sequence[_Queue], until: float, *, acknowledged: bool) -> None:
        """Send, and receive, until all batches are sent, or acknowledged; at a refusal the transaction is spoilt."""
        by_leader: dict[int, list[_Queue]] | None = None
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
            self._receive(wake - time.monotonic())

    def _by_leader(self, queues: Sequence[_Queue]) -> dict[int, list[_Queue]]:
        found: dict[int, list[_Queue]] = {}
        for queue in queues:
            if not queue.done:
                found.setdefault(self._cluster.leader(queue.place).node, []).append(queue)
        return found

    def _revive(self, queues: Sequence[_Queue], now: float, until: float) -> bool:
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

    def _send(self, node: int, queues: list[_Queue], now: float, until: float) -> float:
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

    def _send_one(self, connection: BrokerConnection, waiting: Sequence[_Queue], until: float) -> None:
        """One batch of each, as far as a request goes."""
        left = REQUEST_BYTES
        topics: list[tuple[bytes, list[tuple[int, bytes, memoryview]]]] = []
        last_topic, sent = None, list[tuple[_Queue, int]]()
        producer_id, epoch = self._producer
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
        connection.send(PRODUCE, parts, purpose=sent, until=time.monotonic() + seconds)

    def _receive(self, seconds: float) -> None:
        """Take the answers that are there, after waiting for the first of them."""
        busy = [each for each in self._cluster.data_connections() if each.pending or each.wants_write]
        if busy:
            seconds = min(seconds, min(each.pending[0].until for each in busy if each.pending) - time.monotonic())
        for connection in ready(busy, seconds):
            try:
                connection.flush()
                for pending, answer in connection.receive():
                    self._take(connection, pending.purpose, answer)
            except OSError:
                self._lose(connection)
        now = time.monotonic()
        for connection in busy:
            if connection.pending and connection.pending[0].until <= now:
                self._lose(connection)

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
    def _fail(queue: _Queue, error: int) -> None:
        queue.failed = queue.trouble = error
        queue.again_at = time.monotonic() + queue.backoff.pause()

    def _take(self, connection: BrokerConnection, sent: Sequence[tuple[_Queue, int]], answer: memoryview) -> None:
        told, throttle_ms = read_produced(answer)
        if throttle_ms:
            connection.muted_until = time.monotonic() + throttle_ms / 1000
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
            elif each.error in _REFUSALS:
                record = "" if each.record is None else f", record {each.record} of it"
                detail = f"{KafkaError(each.error).str()}{record}{each.detail and f': {each.detail}'}"
                queue.refusal = Refusal(index=index, detail=detail)
            elif each.error in _PASSING:
                self._fail(queue, each.error)
            else:
                raise self._spoilt("take the batches", each.error, queue)

    def _spoilt(self, what: str, error: int, queue: _Queue | None = None) -> Retriable:
        place = "" if queue is None else f" {queue.place[0]}-{queue.place[1]}"
        why = f"the target does not {what}: {KafkaError(error).str()} ({KafkaError(error).name()})"
        hint = "another producer has the same transactional id now" if error in _FENCED else ""
        return Retriable(why, where=f"{self._cluster.where}{place}", hint=hint)

    def _late(self, queues: Sequence[_Queue]) -> NotAcknowledged:
        lacking = [queue for queue in queues if not queue.done]
        (topic, partition), trouble = lacking[0].place, lacking[0].trouble
        reason = KafkaError(trouble).str() if trouble else "no answer in time"
        more = f", and {len(lacking) - 1} partitions more" if len(lacking) > 1 else ""
        count = sum(len(queue.batches) - len(queue.offsets) for queue in lacking)
        return NotAcknowledged(
            f"{count} batches were not acknowledged: {reason}",
            where=f"{self._cluster.where} {topic}-{partition}{more}",
            hint=_SLOW,
            partitions=[queue.place for queue in lacking],
        )
