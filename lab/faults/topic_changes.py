"""What outsiders do to the topics of a flow: delete, create again, truncate, write to them, add partitions.

A call returns when the cluster shows the change; a broker that is down just now is waited for. Records that a
truncation removes are read before.

A source topic that loses the ends of its logs, as by an unclean election or an old disk; written on from there.

All brokers are killed, the files of the topic are cut, and the supervisor brings the brokers back. A log is cut where
no transaction is open: the coordinator would not end one whose marker is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final, TypeVar
from uuid import uuid4

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from lab.audit.topic_reader import ContentForm, as_it_is, ends, read_topic, stable_ends
from lab.servers.kafka import KafkaCluster
from lab.supervisor import Supervisor
from lab.waiting import wait_for
from mirrorless.errors import Retriable
from mirrorless.verify.comparison import RecordAt, content

T = TypeVar("T")

ANSWER_SECONDS = 10.0
SHOWN_WITHIN_SECONDS = 30.0
BACK_WITHIN_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.05
MOST_FOREIGN = 40
"""Records that another producer writes to a partition at once, about."""
INTERRUPTIONS = (KafkaException, Retriable, TimeoutError)
"""What clients raise while a server is away."""


@dataclass(slots=True, kw_only=True)
class ChangedTopic:
    """One topic of one cluster."""

    bootstrap: str
    topic: str
    form: ContentForm = as_it_is
    """In which its contents are compared."""
    removed: dict[int, list[RecordAt]] = field(default_factory=dict)
    """Visible records that a truncation has removed, by partition."""
    foreign: set[bytes] = field(default_factory=set)
    """The contents of records that another producer wrote."""

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
        self.removed = insist(lambda: read_topic(self.bootstrap, self.topic, cuts, self.form))
        insist(lambda: self._delete_records(cuts))

    def write_beside(self, part: float) -> None:
        """Write records of another producer to each partition, more of them for a larger part."""
        insist(lambda: self._write(1 + round(part * MOST_FOREIGN)))

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

    def _write(self, count: int) -> None:
        producer, failed = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0}), list[KafkaError]()
        for partition in range(self.partitions()):
            for _ in range(count):
                value, timestamp = uuid4().bytes, int(time.time() * 1000)
                self.foreign.add(content(timestamp, b"foreign", value, []))
                producer.produce(
                    self.topic,
                    value,
                    b"foreign",
                    partition,
                    timestamp=timestamp,
                    on_delivery=lambda error, _: failed.append(error) if error is not None else None,
                )
        if producer.flush(ANSWER_SECONDS) or failed:
            raise TimeoutError(f"{self.bootstrap} did not take what another producer wrote to {self.topic}: {failed}")

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
        if wait_for(lambda: not shown(), seconds=SHOWN_WITHIN_SECONDS, every=LOOK_EVERY_SECONDS):
            raise TimeoutError(f"{self.bootstrap} does not show the change of {self.topic}")

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


_HEADER: Final = Struct(">qiibIHiqqq")
"""Offset, length, epoch, magic, checksum, attributes, last delta, two times, producer id."""
_FRONT: Final = 12
"""Bytes of a batch before what its length counts."""
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DERIVED: Final = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot")
"""Files that a broker makes anew of a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCut:
    """What a source topic has lost.

    Attributes:
        ends: where each partition ended after it.
        gone: the visible records from there on, by partition.
    """

    ends: dict[int, int]
    gone: dict[int, list[RecordAt]]


def cut_ends(
    cluster: KafkaCluster,
    supervisor: Supervisor,
    topic: str,
    highest: Mapping[int, int],
    *,
    copied: Mapping[int, int],
    form: ContentForm = as_it_is,
) -> SourceCut:
    """Cut the end of each partition; nobody writes to the topic meanwhile.

    Args:
        cluster: its brokers are killed meanwhile.
        supervisor: of them.
        topic: whose.
        highest: where each partition ends at most.
        copied: by partition, up to which offset: a leader that was just elected may show less for a moment.
        form: in which the contents of what is gone are compared.
    """

    def whole() -> dict[int, int]:
        found = stable_ends(cluster.direct, topic)
        if less := {each: found.get(each, 0) for each, position in copied.items() if found.get(each, 0) < position}:
            raise Retriable(f"its leaders show less than was copied of it: {less}", where=topic)
        return found

    stable = insist(whole)
    before = insist(lambda: read_topic(cluster.direct, topic, stable, form))
    supervisor.hold(*cluster.brokers)
    try:
        cluster.kill()
        ends = {}
        for partition in stable:
            logs = [
                log for broker in cluster.brokers for log in broker.log.parent.glob(f"data/{topic}-{partition}/*.log")
            ]
            shared = set.intersection(*(set(_closed(log)) for log in logs))
            ends[partition] = max(offset for offset in shared if offset <= highest[partition])
            for log in logs:
                log.write_bytes(log.read_bytes()[: _closed(log)[ends[partition]]])
                for derived in (each for kind in _DERIVED for each in log.parent.glob(kind)):
                    derived.unlink()
    finally:
        supervisor.release(*cluster.brokers)
    insist(lambda: stable_ends(cluster.direct, topic))
    gone = {
        partition: [each for each in records if each.offset >= ends[partition]] for partition, records in before.items()
    }
    return SourceCut(ends=ends, gone=gone)


def _closed(log: Path) -> dict[int, int]:
    """The offsets at which a log can end, none of its transactions open, each with its place in the file."""
    data, place = log.read_bytes(), 0
    found, open_ = {0: 0}, set[int]()
    while place + _HEADER.size <= len(data):
        base, length, _, _, _, attributes, delta, _, _, producer = _HEADER.unpack_from(data, place)
        if length <= 0:
            break
        if attributes & _CONTROL:
            open_.discard(producer)
        elif attributes & _TRANSACTIONAL:
            open_.add(producer)
        place += _FRONT + length
        if not open_:
            found[base + delta + 1] = place
    return found
