"""The questions of one transactional producer to its coordinator: which one that is, a new epoch, begin and end.

Each is asked until there is an answer that does not pass by itself: a coordinator may have moved, or be busy with the
markers of the transaction before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.authentication import TurnedAwayError
from mirrorless.adapters.kafka.wire.cluster import Backoff, WireCluster
from mirrorless.adapters.kafka.wire.connection import ApiKey
from mirrorless.adapters.kafka.wire.requests import (
    ADD_PARTITIONS,
    END_TRANSACTION,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    add_partitions,
    end_transaction,
    find_coordinator,
    init_producer_id,
    read_added,
    read_coordinator,
    read_ended,
    read_producer_id,
)
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import TopicPartition

_MOVED: Final = frozenset(
    {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_PASSING: Final = _MOVED | {
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.OPERATION_NOT_ATTEMPTED,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}
_MARKERS_SECONDS: Final = 0.01
"""Between two tries while the coordinator writes the markers of the transaction before: a matter of milliseconds, of
which pauses that double would make a third of a second. Java's producer waits 20 ms (ADD_PARTITIONS_RETRY_BACKOFF_MS).
"""

_FENCED: Final = frozenset({KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


def spoilt(what: str, error: int, where: str) -> Retriable:
    """An answer after which the transaction cannot go on. Args: what: was refused, as the target's verb."""
    why = f"the target does not {what}: {KafkaError(error).str()} ({KafkaError(error).name()})"
    hint = "another producer has the same transactional id now" if error in _FENCED else ""
    return Retriable(why, where=where, hint=hint)


class TransactionCoordinator:
    """The coordinator of one transactional id. What it raises is OSError after the deadline, else Retriable.

    Attributes:
        producer: id and epoch of the producer, which its batches carry.
        is_open: whether a transaction may be open.
    """

    def __init__(self, cluster: WireCluster, *, transactional_id: str, timeout_ms: int) -> None:
        """Nothing is asked yet. Args: timeout_ms: of transactions, by which the coordinator aborts them."""
        self.producer = (-1, -1)
        self.is_open = False
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._node: int | None = None

    def take_new_epoch(self, until: float) -> None:
        """Fence every other producer of the id, and abort what was left open."""
        body = init_producer_id(self._transactional_id, self._timeout_ms)

        def error_of(answer: memoryview) -> int:
            error, *producer = read_producer_id(answer)
            if not error:
                self.producer = (producer[0], producer[1])
            return error

        self._ask("initialise the producer", INIT_PRODUCER_ID, body, error_of, until)
        self.is_open = False

    def add(self, places: Collection[TopicPartition], until: float) -> None:
        """Add partitions to the transaction; the first begin it. One that does not exist keeps all others out."""
        body = add_partitions(self._transactional_id, self.producer, places)

        def error_of(answer: memoryview) -> int:
            errors = [error for error in read_added(answer).values() if error]
            # Of the others it is said only that they were not tried.
            causes = [error for error in errors if error != KafkaError.OPERATION_NOT_ATTEMPTED]
            return (causes or errors or [0])[0]

        self.is_open = True  # also where the answer is lost
        self._ask("begin a transaction", ADD_PARTITIONS, body, error_of, until)

    def commit(self, until: float) -> None:
        """Commit the transaction."""
        body = end_transaction(self._transactional_id, self.producer, commit=True)
        self._ask("commit", END_TRANSACTION, body, read_ended, until)
        self.is_open = False

    def _ask(self, what: str, api: ApiKey, body: bytes, error_of: Callable[[memoryview], int], until: float) -> None:
        backoff, trouble = Backoff(), "no answer"
        while True:
            error = 0
            try:
                if self._node is None:
                    self._node = self._find(until)
                error = error_of(self._cluster.ask(self._node, api, body, until))
            except TurnedAwayError:
                raise
            except OSError as exc:
                trouble, self._node = str(exc), None
            else:
                if not error:
                    return
                trouble = KafkaError(error).str()
                if error not in _PASSING:
                    raise spoilt(what, error, self._cluster.where)
                if error in _MOVED:
                    self._node = None
            pause = _MARKERS_SECONDS if error == KafkaError.CONCURRENT_TRANSACTIONS else backoff.pause()
            if time.monotonic() + pause >= until:
                raise TimeoutError(f"the coordinator gave no answer in time, at last: {trouble}")
            time.sleep(pause)

    def _find(self, until: float) -> int:
        node = self._cluster.any_node(until)
        answer = self._cluster.ask(node, FIND_COORDINATOR, find_coordinator(self._transactional_id), until)
        error, found, address = read_coordinator(answer)
        if error in _PASSING:
            raise ConnectionError(KafkaError(error).str())
        if error:
            raise spoilt("show the coordinator", error, self._cluster.where)
        self._cluster.learn(found, address)
        return found
