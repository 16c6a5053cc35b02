"""An application as a member of a consumer group: it has read what its group has committed.

Records are read committed, and committed batch by batch. Where a commit fails, as when a broker is killed, the cluster
is read for the outcome, and only that counts: so whatever is read twice, or never, is not the application's
own doing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from mirrorless.errors import Retriable

PartitionKey = tuple[str, int]
"""A topic and a partition, by the names of the cluster that is read."""

BATCH = 500
WAIT_S = 0.2
ANSWER_S = 10.0
TIMEOUT_S = 90.0
"""For a cluster that is on its way back."""


class Application:
    """A consumer group's only member, on one cluster at a time."""

    def __init__(self, group: str) -> None:
        """Args: group: its consumer group, by the same name on every cluster."""
        self.group = group
        self.reads: dict[str, Counter[tuple[PartitionKey, int]]] = {}
        """How often each record (place, offset) was read, by the cluster's address."""

    def read_count(self, bootstrap: str) -> int:
        """Records read on a cluster so far."""
        return self.reads[bootstrap].total() if bootstrap in self.reads else 0

    def read(
        self, bootstrap: str, topics: Sequence[str], *, until: Callable[[Mapping[PartitionKey, int]], bool]
    ) -> None:
        """Join, read and commit; leave the group when `until` says so.

        Args:
            bootstrap: the cluster.
            topics: their names there.
            until: called before each batch, with the end of each partition that has been read to it.

        Raises:
            Retriable: the cluster stays away for longer than one that is being restarted.
        """
        counts = self.reads.setdefault(bootstrap, Counter())
        done = False
        while not done:
            ends: dict[PartitionKey, int] = {}
            batch: dict[PartitionKey, list[int]] = {}
            consumer = self._consumer(bootstrap)
            try:
                consumer.subscribe(list(topics), on_assign=partial(self._begin, bootstrap))
                while not (done := until(ends)):
                    batch = _taken(consumer.consume(BATCH, WAIT_S), ends)
                    if not _committed(consumer, batch):
                        break  # join anew: the membership is uncertain
                    _count(counts, batch)
            finally:
                consumer.close()
            if not done:
                known = self.committed(bootstrap, batch)
                _count(counts, {p: [o for o in offsets if o < known.get(p, 0)] for p, offsets in batch.items()})

    def committed(self, bootstrap: str, places: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """What the group has committed there; places without an offset are absent.

        Raises:
            Retriable: the cluster does not answer, for longer than one that is being restarted.
        """
        consumer = self._consumer(bootstrap)
        try:
            return self._ask(consumer, bootstrap, places)
        finally:
            consumer.close()

    def _begin(self, bootstrap: str, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Begin where the group has committed.

        librdkafka 2.16 asks for that by itself, too, but once only where a coordinator that is just being moved refuses
        it (`NOT_COORDINATOR`, `COORDINATOR_NOT_AVAILABLE`): it stays in the group, and never reads.
        """
        places = [(each.topic, each.partition) for each in partitions]
        known = self._ask(consumer, bootstrap, places)
        consumer.assign([TopicPartition(*place, known.get(place, OFFSET_BEGINNING)) for place in places])

    def _ask(self, consumer: Consumer, bootstrap: str, places: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """See `committed`."""
        wanted = [TopicPartition(*place) for place in places]
        deadline = time.monotonic() + TIMEOUT_S
        pause = threading.Event()
        while wanted:
            try:
                answer = consumer.committed(wanted, timeout=ANSWER_S)
            except KafkaException as exc:
                if time.monotonic() > deadline:
                    problem = f"the cluster did not return what group {self.group} committed: {exc}"
                    raise Retriable(problem, where=bootstrap) from exc
            else:
                return {(each.topic, each.partition): each.offset for each in answer if each.offset >= 0}
            pause.wait(WAIT_S)  # between two tries with a deadline
        return {}

    def topics(self, bootstrap: str) -> set[str]:
        """Every topic that the group has an offset of, on a cluster that answers."""
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        there = admin.list_topics(timeout=ANSWER_S).topics.items()
        places = [(name, partition) for name, topic in there for partition in topic.partitions]
        return {topic for topic, _ in self.committed(bootstrap, places)}

    def _consumer(self, bootstrap: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": self.group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                # As for a group whose offsets did not arrive: it reads everything again, and the count shows it.
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,  # brokers are killed on purpose; what matters is raised
            }
        )


def _taken(messages: Sequence[Message], ends: dict[PartitionKey, int]) -> dict[PartitionKey, list[int]]:
    """The offsets of the records, by place; notes the ends that were reached."""
    batch: dict[PartitionKey, list[int]] = {}
    for message in messages:
        topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
        if topic is None or partition is None or offset is None:
            continue  # about the client's connections: it mends them itself
        if error is None:
            ends.pop((topic, partition), None)
            batch.setdefault((topic, partition), []).append(offset)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- the constant's name
            ends[topic, partition] = offset
    return batch


def _committed(consumer: Consumer, batch: Mapping[PartitionKey, Sequence[int]]) -> bool:
    """Commit a batch; False when its outcome is uncertain."""
    if not batch:
        return True
    offsets = [TopicPartition(*place, offsets[-1] + 1) for place, offsets in batch.items()]
    try:
        committed = consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException:
        return False  # `committed` reads the outcome from the cluster
    return not any(each.error for each in committed or ())


def _count(counts: Counter[tuple[PartitionKey, int]], batch: Mapping[PartitionKey, Sequence[int]]) -> None:
    counts.update((place, offset) for place, offsets in batch.items() for offset in offsets)
