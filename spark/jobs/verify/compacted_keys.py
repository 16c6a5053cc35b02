"""The latest value of each key of compacted topics, on both sides, by Spark: keys may be too many for one process.

Each lane's task reads the target and then the source, and keeps the last record of each key: hashes, never contents.
It yields them whenever it holds as many as it may, and at the end. So Spark shuffles and combines one row for each key
and side, more only of keys that are too many for a task; no lane is sorted. Only keys that differ come back to the
driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.records.record import Record
from mirrorless.verify.compacted_keys import Latest
from mirrorless.verify.comparison import CONTENT_BYTES, RecordAt
from mirrorless.verify.task import VerifyTask
from mirrorless.verify.walk import WalkedSide
from spark.jobs.clients import warm_log

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 20_000
"""Of one batch that a task yields."""

HELD_KEYS: Final = 500_000
"""Keys of one side that a task holds, at about 200 bytes each."""

SCHEMA: Final = "lane int, key binary, source boolean, offset long, content binary, tombstone boolean, pending boolean"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key of one lane whose latest records are not equal, or not judged yet."""

    lane: int
    """The number of its task."""
    source: Latest | None
    target: Latest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestKeys:
    """The result of a comparison. Lanes are numbers of tasks."""

    keys: Mapping[int, int]
    """The number of keys of each lane."""
    behind: frozenset[int]
    """Lanes that had records to replicate when they were read."""
    differing: Iterator[KeyPair]
    """The keys that are not plainly equal; to be iterated once."""


def compare_latest(spark: SparkSession, tasks: Sequence[VerifyTask]) -> LatestKeys:
    """Read both sides of each lane, and compare the latest record of each key.

    Raises:
        Exception: of Spark, when a cluster did not answer in several attempts.
    """
    given = [msgspec.json.encode(task) for task in tasks]

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for lane in batch.column(0).to_pylist():
                yield from _rows(lane, msgspec.json.decode(given[lane], type=VerifyTask))

    last = sql.struct("offset", "content", "tombstone", "pending")
    keys = (
        spark.range(0, len(given), 1, len(given))
        .mapInArrow(rows, SCHEMA)
        .groupBy("lane", "key")
        .agg(
            sql.max(sql.when(sql.col("source"), last)).alias("upstream"),
            sql.max(sql.when(~sql.col("source"), last)).alias("downstream"),
        )
        .cache()
    )
    named = sql.col("key").isNotNull()
    sums = keys.groupBy("lane").agg(
        sql.sum(named.cast("long")).alias("keys"),
        sql.max(sql.when(~named, sql.col("upstream.pending"))).alias("behind"),
    )
    lanes = sums.collect()
    equal = (sql.col("upstream.content") == sql.col("downstream.content")) & ~sql.col("upstream.pending")
    differing = keys.filter(named & ~sql.coalesce(equal, sql.lit(False))).coalesce(1).toLocalIterator()  # noqa: FBT003 -- a column's value

    def pairs() -> Iterator[KeyPair]:
        for row in differing:
            yield KeyPair(row["lane"], _latest(row["upstream"]), _latest(row["downstream"]))
        keys.unpersist()

    return LatestKeys(
        keys={row["lane"]: row["keys"] for row in lanes},
        behind=frozenset(row["lane"] for row in lanes if row["behind"]),
        differing=pairs(),
    )


def _latest(row: Any) -> Latest | None:
    return None if row is None else Latest(row["offset"], bytes(row["content"]), row["tombstone"], row["pending"])


def _rows(lane: int, task: VerifyTask) -> Iterator[pa.RecordBatch]:
    """The last records of one lane's keys: first of the target, then of the source, so that nothing can seem ahead.

    The last row has no key: its `pending` is whether the lane was behind.
    """
    settings = task.settings
    dynamodb = dynamodb_client(settings.target.region, settings.tables_role)
    chains = DynamoDbChains(dynamodb, settings.tables.offset_map)
    flow = settings.flow
    target = WalkedSide(
        log=warm_log(msgspec.json.encode(settings.target), flow),
        topic=settings.remote_topic(task.topic),
        partition=task.partition,
    )
    source = WalkedSide(
        log=warm_log(msgspec.json.encode(settings.source), flow), topic=task.topic, partition=task.partition
    )

    end = source.bounds().next
    head = chains.heads([task.lane])[task.lane]
    position = head.position
    log = target.bounds()
    claimed = -1 if head.run is None or head.in_doubt else head.run.last_downstream or -1
    if log.next <= claimed:
        raise Retriable("an open transaction hides the end of the remote partition", where=str(task.lane))
    seen = LastOfKeys(lane)
    for chunk in target.read(log):
        yield from seen.take(chunk.records, None)
    yield from seen.rows()

    behind = False
    log = source.bounds()
    for chunk in source.read(log):
        behind = behind or any(position <= record.offset < end for record in chunk.records)
        yield from seen.take(chunk.records, position)
    # A newer record may have replaced a key's record during the reading: it is below the end as it is by now.
    for chunk in source.read(OffsetRange(log.next, source.bounds().next)):
        yield from seen.take(chunk.records, position)
    yield from seen.rows()
    yield _table(lane, [None], [Latest(position if behind else -1, b"", tombstone=False, pending=behind)], source=True)


@dataclass(slots=True)
class LastOfKeys:
    """The last record of each key of one side, as far as it was read: the partial aggregation within a task."""

    lane: int
    _held: dict[bytes, Latest] = field(default_factory=dict)
    _source: bool = False

    def take(self, records: Sequence[Record], position: int | None) -> Iterator[pa.RecordBatch]:
        """Take the next records; rows come where more keys are held than may be.

        Args:
            records: in order.
            position: the lane's, for records of the source; None for the target's.
        """
        self._source = position is not None
        for each in records:
            # Compacted topics take no record without a key; older records without one are removed by compaction.
            if each.key is not None:
                self._held[sha256(each.key).digest()[:CONTENT_BYTES]] = Latest(
                    each.offset,
                    RecordAt.of(each).content,
                    each.value is None,
                    position is not None and each.offset >= position,
                )
        if len(self._held) >= HELD_KEYS:
            yield from self.rows()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the keys that are held, which are held no longer."""
        held, self._held = self._held, {}
        keys, latest = list(held), list(held.values())
        for first in range(0, len(keys), BATCH_ROWS):
            some = slice(first, first + BATCH_ROWS)
            yield _table(self.lane, keys[some], latest[some], source=self._source)


def _table(lane: int, keys: Sequence[bytes | None], latest: Sequence[Latest], *, source: bool) -> pa.RecordBatch:
    """Rows of `SCHEMA`. Args: keys: hashes; the row without one says whether the lane was behind."""
    import pyarrow as pa  # noqa: PLC0415 -- in the worker

    count = len(keys)
    return pa.RecordBatch.from_pydict(
        {
            "lane": pa.array([lane] * count, pa.int32()),
            "key": pa.array(keys, pa.binary()),
            "source": pa.array([source] * count, pa.bool_()),
            "offset": pa.array([each.offset for each in latest], pa.int64()),
            "content": pa.array([each.content for each in latest], pa.binary()),
            "tombstone": pa.array([each.tombstone for each in latest], pa.bool_()),
            "pending": pa.array([each.pending for each in latest], pa.bool_()),
        }
    )
