"""The task of copying a lane in a job: from a log, range by range, through the replicator of the functions.

    read a chunk  ->  Replicator.replicate(batch)  ->  write progress  ->  renew the lease  ->  next chunk

The lane's chain has the position, so a task that is tried again, a job that runs again and a twin of this task (Spark's
speculation) change nothing: nothing below the position is read, and what two of them read is written by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.clock import Deadline
from mirrorless.flow.settings import FlowSettings
from mirrorless.records.record import Record
from mirrorless.records.record_batch import RecordBatch

CHUNK_RECORDS = 20_000
CHUNK_BYTES = 8_000_000
"""Of one transaction, whichever comes first: 5,000 and 100,000 records were both measured to be slower."""


class OffsetRange(msgspec.Struct, frozen=True):
    """Upstream offsets [first, next)."""

    first: int
    next: int


class CopyTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of a job that is one lane, as it is sent to a task.

    `settings` names the cluster that is read as its source and the one that is written as its target: to copy back, a
    job turns the flow around. `lane_topic` is the lane's own, and not always a topic: a `#` in it, which no topic has,
    marks a lane of a job (`orders#history.old-orders`, `orders#replay`).
    """

    settings: FlowSettings
    lane_topic: str
    read_topic: str
    write_topic: str
    partition: int
    ranges: tuple[OffsetRange, ...]
    """Growing and apart; the chain passes over the offsets between them, and they are not copied."""
    run_id: str
    tables_region: str = ""
    """Of the tables, if it is not the written cluster's region: a flow that is turned around keeps them."""
    files: str = ""
    """URI or path of the run's folder, for the progress; empty for none."""
    holder: str = ""
    """Of the lane's lease; empty where the lane needs none."""
    lease_seconds: int = 300
    max_bytes_per_second: float | None = None
    """The share of the cap of the worker that has this lane, with others or alone."""
    job_bytes_per_second: float | None = None
    """The cap of the whole job: the last lanes take over what others leave."""
    archive: str | None = None
    """A folder of Parquet files to read instead of the source cluster."""
    hand_over: bool = False
    """Whether the lane is copied to the log's end as it is by then, and is let go to the mapping there."""
    handover_seconds: int = 120
    group: str = ""
    """The mapping's consumer group, where the lane is handed over."""

    @property
    def lane(self) -> Lane:
        """The lane of the chain."""
        return Lane(FlowName.parse(self.settings.flow), self.lane_topic, self.partition)


HandedOver = Literal["", "waiting", "committed", "pinned", "idle"]
"""How a lane was joined to its mapping; empty where it has none."""


class CopyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one lane."""

    lane: str
    partition: int
    state: Literal["done", "stopped", "failed"]
    records: int = 0
    """In the chain, of the job's ranges, whichever attempt wrote them."""
    bytes: int = 0
    """Of keys and values; of whole batches those of their payloads, compressed."""
    passed_bytes: int = 0
    """Those of `bytes` whose batches were passed as they lay in the source's log."""
    written: int = 0
    """By this attempt; less than `records` where an earlier one wrote some."""
    runs: int = 0
    first: int = 0
    """Upstream, of the job's ranges."""
    position: int = 0
    """Upstream, of the lane now."""
    first_downstream: int | None = None
    last_downstream: int | None = None
    handed_over: HandedOver = ""
    """The evidence that the lane is joined to its mapping: see `mirrorless.backfill.handover`."""
    attempts: int = 1
    races: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of lanes that are copied at the same time in one task, an equal part of the task's."""
    error: str = ""


class Chunk(msgspec.Struct, frozen=True):
    """The records of a log from one upstream offset to another."""

    records: list[Record]
    covered: int
    """The upstream offset below which everything was read: beyond the last record where only markers follow."""


class LaneLog(Protocol):
    """A partition's log, of a cluster or of an archive, as a read_committed reader sees it."""

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:
        """The log's first offset and its stable end.

        Raises:
            Retriable: the cluster does not answer.
        """
        ...

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:
        """Every visible record of a range, in order, in chunks; the last chunk covers all of it.

        Raises:
            Retriable: the cluster does not answer.
            RecordsGone: the log begins above `wanted.first`: retention has deleted records of the range.
        """
        ...


class BatchAt(NamedTuple):
    """A batch, and the first of its offsets that is wanted."""

    offset: int
    batch: RecordBatch


class BatchChunk(NamedTuple):
    """The batches of a log from one offset to another, as `Chunk` has records."""

    records: list[BatchAt]
    covered: int


class BatchLog(Protocol):
    """A partition's log by whole batches, as a read_committed reader sees it."""

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[BatchChunk]:
        """Every visible batch that reaches into a range, in order; the last chunk covers all of it.

        Raises:
            Retriable: the cluster does not answer.
            RecordsGone: the log begins above `wanted.first`.
        """
        ...


def tasks_of(text: Sequence[bytes]) -> list[CopyTask]:
    """Read tasks back from their JSON."""
    return [msgspec.json.decode(each, type=CopyTask) for each in text]
