"""What outsiders do to the topics of a flow: delete, create again, truncate, add partitions.

A call returns when the cluster shows the change; a broker that is down just now is waited for. Records that a
truncation removes are read before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from lab.audit.topic_reader import ends, read_topic
from mirrorless.errors import Retriable
from mirrorless.verify.comparison import RecordAt

T = TypeVar("T")

ANSWER_SECONDS = 10.0
SHOWN_WITHIN_SECONDS = 30.0
BACK_WITHIN_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.05
INTERRUPTIONS = (KafkaException, Retriable, TimeoutError)
"""What clients raise while a server is away."""


@dataclass(slots=True, kw_only=True)
class ChangedTopic:
    """One topic of one cluster."""

    bootstrap: str
    topic: str
    removed: dict[int, list[RecordAt]] = field(default_factory=dict)
    """Visible records that a truncation has removed, by partition."""

    def delete(self) -> None:
        """Delete the topic with its records."""
        insist(self._delete)

    def create_again(self) -> None:
        """Delete the topic, and create it with as many partitions."""
        count = insist(self.partitions)
        self.delete()
        insist(lambda: self._create(count))

    def truncate(self, part: float) -> None:
        """Remove the first records of each partition (DeleteRecords): `part` of what is visible."""
        stable = insist(lambda: ends(self.bootstrap, self.topic, IsolationLevel.READ_COMMITTED))
        cuts = {partition: round(end * part) for partition, end in stable.items()}
        self.removed = insist(lambda: read_topic(self.bootstrap, self.topic, cuts))
        insist(lambda: self._delete_records(cuts))

    def add_partition(self) -> int:
        """Add one partition; return how many there are."""
        count = insist(self.partitions) + 1
        insist(lambda: self._grow(count))
        return count

    def partitions(self) -> int:
        """How many partitions the cluster shows; 0 without the topic."""
        found = self._admin().list_topics(self.topic, timeout=ANSWER_SECONDS).topics[self.topic]
        if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(found.error)
        return len(found.partitions)

    def _delete(self) -> None:
        if self.partitions():
            admin = self._admin()  # it has to live until it has answered
            admin.delete_topics([self.topic])[self.topic].result(ANSWER_SECONDS)
        self._await(lambda: self.partitions() == 0)

    def _create(self, count: int) -> None:
        if not self.partitions():  # the forwarder may have been faster
            admin = self._admin()
            admin.create_topics([NewTopic(self.topic, count)])[self.topic].result(ANSWER_SECONDS)
        self._await(lambda: self.partitions() >= count)

    def _delete_records(self, cuts: Mapping[int, int]) -> None:
        places = [TopicPartition(self.topic, partition, cut) for partition, cut in cuts.items()]
        admin = self._admin()
        for future in admin.delete_records(places).values():
            future.result(ANSWER_SECONDS)

    def _grow(self, count: int) -> None:
        if self.partitions() < count:
            admin = self._admin()
            admin.create_partitions([NewPartitions(self.topic, count)])[self.topic].result(ANSWER_SECONDS)
        self._await(lambda: self.partitions() >= count)

    def _await(self, shown: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SHOWN_WITHIN_SECONDS
        while not shown():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.bootstrap} does not show the change of {self.topic}")
            time.sleep(LOOK_EVERY_SECONDS)  # between two looks at a condition with a deadline

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})


def insist(
    call: Callable[[], T],
    *,
    interruptions: tuple[type[Exception], ...] = INTERRUPTIONS,
    seconds: float = BACK_WITHIN_SECONDS,
) -> T:
    """Repeat a call that a killed server may interrupt, and that may be repeated.

    Raises:
        one of the `interruptions`: that of the first try which ends after these seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except interruptions:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_EVERY_SECONDS)  # the server gets the time to come back; nothing else announces it
