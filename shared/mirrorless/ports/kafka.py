"""Ports of the two clusters: writers, lookups and consumer groups, topics on the source, internal topics on both.

Consumer groups are classic ones and those of KIP-848 alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from mirrorless.clock import Deadline
from mirrorless.errors import Refused
from mirrorless.records.record import Record

if TYPE_CHECKING:
    from mirrorless.records.record_batch import BatchUnreadable

TopicPartition = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The target's answer to a record that it will never take as it is."""

    index: int
    """In the sequence that was written, of the first record of the refused batch; exact with a careful writer only, and
    where whole batches were written."""
    detail: str
    too_large: bool = False
    """Whether its size was the reason: another codec may make it fit."""
    cause: str = ""
    """Of `refusal_causes`."""
    records: Sequence[int] = ()
    """Those that the broker itself names, where it names any: counted from the refused batch's first record on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What became of the records written to one partition."""

    downstream: Sequence[int]
    """The downstream offset of each acknowledged record, in order; of each whole batch, that of its first record."""
    refusal: Refusal | None = None
    unclear: bool = False
    """The writer checked the ends only. It checks every report from now on: abort, and write the same again."""


class Writer(Protocol):
    """One producer. After any exception it must be discarded."""

    @property
    def transactional_id(self) -> str:
        """Fencing this settles whatever the writer left open; empty for a writer without transactions."""
        ...

    @property
    def throttled_ms(self) -> int:
        """The longest pause that a broker asked for since the last transaction began: a quota holds the flow back."""
        ...

    def write(
        self,
        lanes: Mapping[TopicPartition, Sequence[Record]],
        deadline: Deadline,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[TopicPartition, Delivery]:
        """Begin a transaction where the writer has them, write all lanes and wait for every acknowledgement.

        Only a writer with transactions may leave a delivery unclear, and no lane twice in a row.

        Args:
            lanes: the records by partition of a remote topic. A writer of an engine that reads whole batches takes
                sequences of `RecordBatch` too.
            deadline: seconds left.
            meanwhile: called once while the last records are under way, in another thread; what it raises is raised
                here.

        Raises:
            Retriable: when not every record was either acknowledged or refused before the deadline.
        """
        ...

    def commit(self, deadline: Deadline) -> None:
        """Commit the transaction.

        Raises:
            Retriable: when the outcome is not known; only the chain has it.
        """
        ...

    def abort(self, deadline: Deadline) -> None:
        """Abort the transaction.

        Raises:
            Retriable: when it may still be open.
        """
        ...


PORTION: Final = 16
"""Batches in one transaction of a careful writer. A request of a partition waits for the one before, so a transaction
takes as long as their number times the delay."""


LookResult = Literal["unsettled", "absent", "expired", "ended"]
"""A transaction still hides the offset; or an aborted record stands there; or what stood there is gone: the log begins
above it, or compaction removed it; or the log ends at or below it, or is not there."""


class Target(Protocol):
    """The target cluster of a flow."""

    def writer(self, deadline: Deadline) -> Writer:
        """The environment's warm writer, opened if need be.

        Raises:
            Retriable: when the cluster does not answer.
        """
        ...

    def careful_writer(self, batch_records: int, deadline: Deadline, *, codec: str = "") -> Writer:
        """A writer for one lane, with so many records in a batch at most, so that a refusal names one batch.

        It may take fewer records than it is given, but at least one: those of its first `PORTION` batches. `codec`: to
        compress by; empty for the usual one.
        """
        ...

    def prefer(self, codec: str) -> None:
        """Compress by this codec from now on: a record was taken that was too large by the usual one."""
        ...

    def explained(
        self, place: TopicPartition, records: Sequence[Record], refusal: Refusal, deadline: Deadline
    ) -> Refusal:
        """The refusal of a batch in the broker's own words, and with the records that it names.

        As it is where the target gives no more, or does not answer in time. Nothing that is written for it is visible.

        Args:
            place: the remote topic-partition.
            records: from the first record of the refused batch on, further than that batch.
            refusal: as the writer saw it.
            deadline: seconds left.
        """
        ...

    def limit_batches(self, refused_bytes: int) -> None:
        """Use smaller batches from now on: one of so many bytes was refused, although none of its records was."""
        ...

    def discard_writers(self) -> None:
        """Forget every warm writer, without waiting for anything."""
        ...

    def fence(self, transactional_id: str, deadline: Deadline) -> None:
        """Make sure that nothing more can be committed under this transactional id.

        Raises:
            Retriable: when the cluster does not answer.
        """
        ...

    def look(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, Record | LookResult]:
        """By partition, the record that a read_committed reader finds at exactly this downstream offset of it.

        Raises:
            Retriable: when the cluster does not answer.
        """
        ...

    def partition_count(self, topic: str, deadline: Deadline) -> int:
        """How many partitions the topic has; 0 when it does not exist."""
        ...

    def create_partitions(self, topic: str, count: int, configs: Mapping[str, str], deadline: Deadline) -> None:
        """Create the topic, or grow it to `count` partitions. Being late is not an error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """What a remote topic takes over from its source topic."""

    partitions: int
    configs: Mapping[str, str]
    """Only what differs from the source broker's defaults and is not excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesRead:
    """What was read of some ranges of a partition's log."""

    until: int
    """All of the ranges below this upstream offset was read; -1 for nothing."""
    records: Sequence[Record] = ()
    """The committed records there, in order."""
    log_start: int = 0
    """Where the log begins, if that is above the beginning of a range: what stood below is gone."""
    damage: BatchUnreadable | None = None
    """The batch that nobody can read at which reading ended."""


class CommittedLog(Protocol):
    """The logs of the source, read by offsets, as a read_committed reader sees them."""

    def read(
        self,
        ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]],
        deadline: Deadline,
        *,
        near: int,
        size: int,
    ) -> dict[TopicPartition, RangesRead]:
        """Read ranges of several partitions side by side, within limits of time and of bytes.

        Args:
            ranges: of each partition, upstream offsets [first, next), ascending and disjoint; none is empty.
            deadline: seconds that are left.
            near: upstream offsets between two ranges that are read through: a new range costs a round trip.
            size: bytes of records after which reading ends. One record is returned however large it is.

        Raises:
            Retriable: the cluster does not answer.
        """
        ...


class Source(Protocol):
    """The source cluster of a flow: read only when a remote topic or partition is missing."""

    def describe(self, topic: str, deadline: Deadline) -> SourceTopic:
        """Raises Retriable when the cluster does not answer."""
        ...


class EpochEnd(NamedTuple):
    """The largest epoch of a log that is not above the one that was asked for; -1 where the log knows none like it."""

    epoch: int
    end: int
    """The upstream offset behind the last record of that epoch."""


class LogEpochs(Protocol):
    """What tells a log from another one of the same name; None where the cluster is too old to say it.

    Every method raises Retriable when the cluster does not answer.
    """

    def ends(self, epochs: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, EpochEnd] | None:
        """For an epoch of each partition; one without a leader is left out."""
        ...

    def current(self, topics: Iterable[str], deadline: Deadline) -> dict[TopicPartition, int] | None:
        """The epoch of the leader of each partition of topics; one without a leader is left out."""
        ...

    def topic_ids(self, topics: Iterable[str], deadline: Deadline) -> dict[str, str] | None:
        """The ids of topics as they are now; those that do not exist are left out."""
        ...

    def close(self) -> None:
        """Drop what is open; the next question opens it again."""
        ...


Written = tuple[str, bytes, bytes, int]
"""Topic, key, value, and timestamp in ms since the epoch."""


LogEnds = tuple[int, int, int]
"""Of a partition: its log's start, the last stable offset, the high watermark."""


class InternalTopics(Protocol):
    """One cluster. Every method raises Retriable when it does not answer."""

    def ensure_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int,
        configs: Mapping[str, str],
        deadline: Deadline,
    ) -> None:
        """Create a topic unless it is there."""
        ...

    def write(self, records: Sequence[Written], deadline: Deadline) -> None:
        """Write records to partition 0 of their topics, and wait until all are acknowledged."""
        ...

    def ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, LogEnds]:
        """Where partitions begin and end; places that do not exist are left out."""
        ...

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """How many partitions each topic has."""
        ...


GroupState = Literal["active", "empty", "absent"]
"""`active`: it has members, or is about to have. `empty`: it has offsets and no member. `absent`: never heard of."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset that a group committed, with its metadata (never None: Kafka turns null into empty)."""

    offset: int
    metadata: str = ""


class GroupIsActive(Refused):
    """The group has live members, so offsets cannot be committed for it. Nothing was changed."""


class Groups(Protocol):
    """The consumer groups of one cluster. Every method raises Retriable when the cluster does not answer."""

    def names(self, deadline: Deadline) -> list[str]:
        """Every consumer group, classic or KIP-848, in order; share and streams groups are none."""
        ...

    def states(self, groups: Iterable[str], deadline: Deadline) -> dict[str, GroupState]:
        """The state of each of the groups."""
        ...

    def committed(
        self, groups: Iterable[str], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Everything that each group has committed; places without an offset (-1) are left out.

        A group whose commits cannot be read, because of its rights for instance, is absent from the answer.
        """
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline) -> None:
        """Commit for a group without members.

        Raises:
            GroupIsActive: it has members; the broker refused.
        """
        ...
