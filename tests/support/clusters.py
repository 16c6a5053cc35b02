"""A target cluster in memory: logs, transactions, fencing, and what a read_committed reader sees.

Only the protocol's logic is tried against it, over more schedules than real servers have time for; the same
invariants are held on real Kafka by the integration tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mirrorless.adapters.kafka.writer import BATCH_BYTES, BATCH_RECORDS, first_batches
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import PORTION, Delivery, LookResult, Refusal, SourceTopic, TopicPartition
from mirrorless.protocol.outgoing import LaneContent, is_raw
from mirrorless.records.batch_records import records as records_of
from mirrorless.records.record import Record, size_of
from mirrorless.records.record_batch import PassTerms, RecordBatch


@dataclass(slots=True)
class Entry:
    """One offset of a partition: a record of some transaction, or a marker that ended one."""

    record: Record | None
    """None for a marker, and where compaction removed the record."""
    state: Literal["open", "committed", "aborted", "marker"]
    writer: str


@dataclass(slots=True)
class MemoryCluster:
    """The state that all environments share."""

    topics: dict[str, list[list[Entry]]] = field(default_factory=dict)
    configs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    refuses: Callable[[str, int, Record], bool] = lambda _topic, _partition, _record: False
    fits: Callable[[str, Record], bool] = lambda _codec, _record: True
    """Whether a record is small enough, compressed by a codec; empty for the flow's own."""
    on_commit: Callable[[str, list[tuple[int, int]]], None] = lambda _writer, _places: None
    """Called before a transaction commits, with its writer and its (partition, downstream offset) pairs."""
    blurs: Callable[[str, int], bool] = lambda _topic, _partition: False
    """Whether the outcome of a write to a partition is unclear; see `Delivery.unclear`."""
    batch_bytes: int = BATCH_BYTES
    """The bytes above which a batch is refused."""
    cause: str = "MSG_SIZE_TOO_LARGE"
    """Of what it refuses."""
    names_records: bool = False
    """Whether it names the records of a batch that it refuses."""
    requests: list[int] = field(default_factory=list)
    """The records of each batch that was ever sent."""

    def begin_epoch(self, transactional_id: str) -> int:
        """What init_transactions does: end the open transaction of this id, and shut its older writers out."""
        self._end(transactional_id, "aborted")
        self.epochs[transactional_id] = self.epochs.get(transactional_id, 0) + 1
        return self.epochs[transactional_id]

    def commit(self, transactional_id: str) -> None:
        """Make the records of the open transaction visible."""
        places = [
            (partition, offset)
            for partitions in self.topics.values()
            for partition, log in enumerate(partitions)
            for offset, entry in enumerate(log)
            if entry.state == "open" and entry.writer == transactional_id
        ]
        self.on_commit(transactional_id, places)
        self._end(transactional_id, "committed")

    def abort(self, transactional_id: str) -> None:
        """Hide the records of the open transaction for ever."""
        self._end(transactional_id, "aborted")

    def time_transactions_out(self) -> None:
        """What the coordinator does with transactions that stay open for too long."""
        for transactional_id in list(self.epochs):
            if self._logs_with_open(transactional_id):
                self.begin_epoch(transactional_id)

    def visible(self, topic: str, partition: int) -> list[tuple[int, Record]]:
        """Downstream offset and record, as a read_committed reader finds them; nothing behind an open transaction."""
        log = self.topics[topic][partition]
        return [
            (offset, entry.record)
            for offset, entry in enumerate(log[: stable_offset(log)])
            if entry.state == "committed" and entry.record is not None
        ]

    def _end(self, transactional_id: str, state: Literal["committed", "aborted"]) -> None:
        for log in self._logs_with_open(transactional_id):
            for entry in log:
                if entry.state == "open" and entry.writer == transactional_id:
                    entry.state = state
            log.append(Entry(None, "marker", transactional_id))

    def _logs_with_open(self, transactional_id: str) -> list[list[Entry]]:
        return [
            log
            for partitions in self.topics.values()
            for log in partitions
            if any(entry.state == "open" and entry.writer == transactional_id for entry in log)
        ]


def stable_offset(log: Sequence[Entry]) -> int:
    """The last stable offset: that of the first record of an open transaction, else the end."""
    return next((offset for offset, entry in enumerate(log) if entry.state == "open"), len(log))


def _seen(log: Sequence[Entry], offset: int) -> Record | LookResult:
    if offset >= len(log):
        return "ended"
    if offset >= stable_offset(log):
        return "unsettled"
    entry = log[offset]
    if entry.record is None:
        return "expired"
    return entry.record if entry.state == "committed" else "absent"


@dataclass(slots=True)
class MemoryWriter:
    """Implements `mirrorless.ports.kafka.Writer`."""

    cluster: MemoryCluster
    transactional_id: str
    epoch: int
    batch: tuple[int, int] = (BATCH_BYTES, BATCH_RECORDS)
    """The bytes and the number of records of a batch at most."""
    portion: int | None = None
    """How many batches of a lane it takes; None: all."""
    codec: str = ""
    throttled_ms: int = 0
    """See `Writer.throttled_ms`."""

    def write(
        self,
        lanes: Mapping[TopicPartition, LaneContent],
        deadline: Deadline,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[TopicPartition, Delivery]:
        """See `Writer.write`."""
        self._assert_not_fenced()
        written = {place: self._append(*place, records) for place, records in lanes.items()}
        if meanwhile is not None:
            meanwhile()
        return written

    def commit(self, deadline: Deadline) -> None:
        """See `Writer.commit`."""
        self._assert_not_fenced()
        self.cluster.commit(self.transactional_id)

    def abort(self, deadline: Deadline) -> None:
        """See `Writer.abort`."""
        self._assert_not_fenced()
        self.cluster.abort(self.transactional_id)

    def _append(self, topic: str, partition: int, content: LaneContent) -> Delivery:
        if is_raw(content):
            return self._append_batches(topic, partition, content)
        records: Sequence[Record] = content  # type: ignore[assignment]  # what is not raw has records
        log = self.cluster.topics[topic][partition]
        offsets: list[int] = []
        wanted = records if self.portion is None else first_batches(records, self.portion, *self.batch)
        while rest := wanted[len(offsets) :]:
            batch = first_batches(rest, 1, *self.batch)
            self.cluster.requests.append(len(batch))
            too_large = sum(map(size_of, batch)) > self.cluster.batch_bytes
            misfit = not all(self.cluster.fits(self.codec, record) for record in batch)
            if too_large or misfit or any(self.cluster.refuses(topic, partition, record) for record in batch):
                refusal = replace(self._refusal(len(offsets)), too_large=misfit)
                return Delivery(downstream=offsets, refusal=refusal)
            for record in batch:
                offsets.append(len(log))
                log.append(Entry(record, "open" if self.transactional_id else "committed", self.transactional_id))
        if self.transactional_id and self.cluster.blurs(topic, partition):
            return Delivery(downstream=(), unclear=True)
        return Delivery(downstream=offsets)

    def _append_batches(self, topic: str, partition: int, batches: Sequence[RecordBatch]) -> Delivery:
        """Append whole batches as a broker does: it takes no batch with holes, and gives the first offset of each."""
        log = self.cluster.topics[topic][partition]
        bases: list[int] = []
        for batch in batches:
            records = records_of(batch)
            assert len(records) == batch.last_offset_delta + 1, "a broker refuses a batch with holes"
            assert not batch.has_log_append_time, "a broker takes it, and its records have other timestamps then"
            self.cluster.requests.append(len(records))
            too_large = sum(map(size_of, records)) > self.cluster.batch_bytes
            misfit = not all(self.cluster.fits(batch.codec, record) for record in records)
            if too_large or misfit or any(self.cluster.refuses(topic, partition, record) for record in records):
                return Delivery(downstream=bases, refusal=self._refusal(len(bases)))
            bases.append(len(log))
            log.extend(Entry(record, "open", self.transactional_id) for record in records)
        if self.cluster.blurs(topic, partition):
            return Delivery(downstream=(), unclear=True)
        return Delivery(downstream=bases)

    def _refusal(self, index: int) -> Refusal:
        return Refusal(index=index, detail="too large", cause=self.cluster.cause)

    def _assert_not_fenced(self) -> None:
        if self.transactional_id and self.cluster.epochs[self.transactional_id] != self.epoch:
            raise Retriable("fenced", where=self.transactional_id)


@dataclass(slots=True)
class MemoryTarget:
    """Implements `mirrorless.ports.kafka.Target` for one environment."""

    cluster: MemoryCluster
    environment: str
    """Empty for writers without transactions."""
    batch_bytes: int = BATCH_BYTES
    codec: str = ""
    _writers: dict[str, MemoryWriter] = field(default_factory=dict)

    def writer(self, deadline: Deadline) -> MemoryWriter:
        """See `Target.writer`."""
        return self._open(self.environment, BATCH_RECORDS)

    def careful_writer(self, batch_records: int, deadline: Deadline, *, codec: str = "") -> MemoryWriter:
        """See `Target.careful_writer`."""
        return self._open(self.environment and f"{self.environment}.careful", batch_records, PORTION, codec)

    def prefer(self, codec: str) -> None:
        """See `Target.prefer`."""
        self.codec = codec

    def explained(
        self, place: TopicPartition, records: Sequence[Record], refusal: Refusal, deadline: Deadline
    ) -> Refusal:
        """See `Target.explained`."""
        if not self.cluster.names_records:
            return refusal
        named = [index for index, record in enumerate(records) if self.cluster.refuses(*place, record)]
        return replace(refusal, records=named)

    def limit_batches(self, refused_bytes: int) -> None:
        """See `Target.limit_batches`."""
        self.batch_bytes = max(1, min(self.batch_bytes, refused_bytes) // 2)

    def terms(self) -> PassTerms:
        """What it takes of whole batches."""
        return PassTerms(max_message_bytes=self.batch_bytes)

    def discard_writers(self) -> None:
        """See `Target.discard_writers`."""
        self._writers.clear()

    def fence(self, transactional_id: str, deadline: Deadline) -> None:
        """See `Target.fence`."""
        self._writers.pop(transactional_id, None)
        self.cluster.begin_epoch(transactional_id)

    def look(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, Record | LookResult]:
        """See `Target.look`."""
        return {place: _seen(self._log(*place), offset) for place, offset in offsets.items()}

    def _log(self, topic: str, partition: int) -> list[Entry]:
        partitions = self.cluster.topics.get(topic, [])
        return partitions[partition] if partition < len(partitions) else []

    def partition_count(self, topic: str, deadline: Deadline) -> int:
        """See `Target.partition_count`."""
        return len(self.cluster.topics.get(topic, []))

    def create_partitions(self, topic: str, count: int, configs: Mapping[str, str], deadline: Deadline) -> None:
        """See `Target.create_partitions`."""
        partitions = self.cluster.topics.setdefault(topic, [])
        self.cluster.configs.setdefault(topic, configs)
        partitions += [[] for _ in range(count - len(partitions))]

    def _open(
        self, transactional_id: str, batch_records: int, portion: int | None = None, codec: str = ""
    ) -> MemoryWriter:
        warm, batch = self._writers.get(transactional_id), (self.batch_bytes, batch_records)
        by = codec or self.codec
        if warm is None or (warm.batch, warm.portion, warm.codec) != (batch, portion, by):
            epoch = self.cluster.begin_epoch(transactional_id) if transactional_id else 0
            warm = MemoryWriter(self.cluster, transactional_id, epoch, batch, portion, by)
            self._writers[transactional_id] = warm
        return warm


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Implements `mirrorless.ports.kafka.Source`."""

    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)

    def describe(self, topic: str, deadline: Deadline) -> SourceTopic:
        """See `Source.describe`."""
        return SourceTopic(partitions=self.partitions, configs=self.configs)
