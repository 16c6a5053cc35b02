"""Conflicts by key, by Spark: each section of a log yields one row for each record, without its content.

A row is `(lane, key hash, offset, timestamp, size)`. Windows over the keys of a lane set the newest other record beside
each orphan; then only orphans remain. The run's folder has each of them; the driver gets sums, some listed keys and
ranges.

The orphans of a reconcile as Parquet in its run's folder, `orphans/<topic>-<partition>.parquet`: a row for each.

A row has a record's place, time and size, the beginning of its key, and the same of the newest other record of its key,
without the contents. A report lists a few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.errors import MirrorlessError
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import lane_file
from mirrorless.ports.kafka import TopicPartition
from mirrorless.reconcile.conflicts import (
    KEY_BYTES,
    LISTED,
    SAMPLED,
    Conflict,
    ConflictRecord,
    ConflictSection,
    LaneConflicts,
    OrphanKey,
    sections_of,
)
from mirrorless.reconcile.inspect import chunks_of
from mirrorless.reconcile.orphans import within
from mirrorless.records.record import Record
from spark.jobs.clients import warm_log
from spark.jobs.context import most_attempts
from spark.jobs.lane_tasks import TaskAttempt
from spark.jobs.parquet_rows import write_batches

if TYPE_CHECKING:
    import pyarrow as pa

HASH_BYTES: Final = 16

ROWS: Final = (
    "lane int, key binary, label binary, orphan boolean, side string, offset long, timestamp long, size long, "
    "tombstone boolean, error string"
)
"""`label` has an orphan's first bytes of its key; null where it has no key."""

T = TypeVar("T")

_LATEST: Final = (1 << 63) - 1


def find_conflicts(spark: SparkSession, reads: Sequence[ConflictSection], folder: str) -> dict[int, LaneConflicts]:
    """The orphans of each lane that has any, by the lane's number, beside the other records of their keys.

    Args:
        spark: the session.
        reads: of all lanes.
        folder: the run's, in which each orphan is kept: see `keep_orphans`.

    Raises:
        Exception: of Spark, when a cluster or the folder did not answer in several attempts.
    """
    sections = [msgspec.json.encode(each) for read in reads for each in sections_of(read)]
    if not sections:
        return {}
    most = most_attempts(spark.sparkContext)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = TaskAttempt.of(most)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _rows(msgspec.json.decode(sections[number], type=ConflictSection), attempt)

    orphans = orphans_of(spark.range(0, len(sections), 1, len(sections)).mapInArrow(rows, ROWS)).cache()
    try:
        keep_orphans(orphans, {read.lane: (read.topic, read.partition) for read in reads if read.orphans}, folder)
        return conflicts_of(orphans)
    finally:
        orphans.unpersist()


def orphans_of(rows: DataFrame) -> DataFrame:
    """The orphans among rows of the schema `ROWS`, each with the newest `other` record of its key, or null."""
    rank = sql.when(sql.col("timestamp") < 0, sql.lit(_LATEST)).otherwise(sql.col("timestamp")).alias("rank")
    other = sql.struct(rank, "offset", "side", "timestamp", "size", "tombstone")
    newest = sql.max(sql.when(~sql.col("orphan"), other)).over(Window.partitionBy("lane", "key"))
    return rows.withColumn("other", newest).filter("orphan")


def conflicts_of(orphans: DataFrame) -> dict[int, LaneConflicts]:
    """The conflicts of orphans."""
    met = sql.col("other").isNotNull()
    named = sql.col("label").isNotNull()
    sums = orphans.groupBy("lane").agg(
        sql.count_distinct(sql.when(named, sql.col("key"))).alias("keys"),
        sql.count_distinct(sql.when(met, sql.col("key"))).alias("conflicts"),
        sql.min(sql.when(sql.col("timestamp") >= 0, sql.col("timestamp"))).alias("oldest"),
        sql.max(sql.when(sql.col("timestamp") >= 0, sql.col("timestamp"))).alias("newest"),
        sql.max("error").alias("error"),
    )
    found = sums.collect()
    first = sql.row_number().over(Window.partitionBy("lane").orderBy("offset"))
    sample = orphans.filter(named).withColumn("nth", first).filter(sql.col("nth") <= SAMPLED)
    sampled = _by_lane(sample.orderBy("lane", "nth").collect(), _orphan_key)
    listed = _by_lane(_listed(orphans.filter(met)).collect(), _conflict)
    older = _by_lane(_ranges(orphans.filter(met & (sql.col("timestamp") <= sql.col("other.rank")))), _range)
    return {
        row["lane"]: LaneConflicts(
            keys=row["keys"],
            oldest=-1 if row["oldest"] is None else row["oldest"],
            newest=-1 if row["newest"] is None else row["newest"],
            first_keys=tuple(sampled.get(row["lane"], ())),
            conflicts=row["conflicts"],
            listed=tuple(listed.get(row["lane"], ())),
            older=tuple(older.get(row["lane"], ())),
            error=row["error"] or "",
        )
        for row in found
    }


def _listed(conflicts: DataFrame) -> DataFrame:
    """The last orphan of each of a lane's first keys."""
    last = Window.partitionBy("lane", "key").orderBy(sql.desc("offset"))
    first = Window.partitionBy("lane").orderBy("offset")
    return (
        conflicts.withColumn("nth", sql.row_number().over(last))
        .filter("nth = 1")
        .withColumn("nth", sql.row_number().over(first))
        .filter(sql.col("nth") <= LISTED)
        .orderBy("lane", "nth")
    )


def _ranges(orphans: DataFrame) -> list[Any]:
    """Offsets that follow each other, as ranges: all of one have the same distance to their number."""
    number = sql.row_number().over(Window.partitionBy("lane").orderBy("offset"))
    return (
        orphans.withColumn("range", sql.col("offset") - number)
        .groupBy("lane", "range")
        .agg(sql.min("offset").alias("first"), sql.max("offset").alias("last"))
        .orderBy("lane", "first")
        .collect()
    )


def _by_lane(rows: Iterable[Any], made: Callable[[Any], T]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for row in rows:
        found.setdefault(row["lane"], []).append(made(row))
    return found


def _conflict(row: Any) -> Conflict:
    return Conflict(
        key=bytes(row["label"]).decode("utf-8", "backslashreplace"), orphan=_written(row), other=_written(row["other"])
    )


def _orphan_key(row: Any) -> OrphanKey:
    text = bytes(row["label"]).decode("utf-8", "backslashreplace")
    return OrphanKey(text, bytes(row["key"]).hex(), row["offset"], row["timestamp"], row["size"])


def _range(row: Any) -> OffsetRange:
    return OffsetRange(row["first"], row["last"] + 1)


def _written(row: Any) -> ConflictRecord:
    return ConflictRecord(row["side"], row["offset"], row["timestamp"], row["size"], row["tombstone"])


def _rows(task: ConflictSection, attempt: TaskAttempt) -> Iterator[pa.RecordBatch]:
    """Every record of a section that counts; a section that cannot be read is a row with the error."""
    cluster = task.settings.source if task.side == "source" else task.settings.target
    log = warm_log(msgspec.json.encode(cluster), task.settings.flow)
    try:
        for chunk in chunks_of(log, task.topic, task.partition, task.wanted):
            yield _batch(task, chunk.records)
    except MirrorlessError as exc:
        if exc.retriable and not attempt.last:
            raise
        yield _batch(task, [Record(offset=task.wanted.first, timestamp=-1, headers=[])], error=str(exc))


def _batch(task: ConflictSection, every: Sequence[Record], *, error: str | None = None) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 -- in the worker

    offsets = [each.offset for each in every]
    skipped, orphaned = within(task.skipped, offsets), within(task.orphans, offsets)
    # An orphan without a key counts for the time of the orphans only: its place is instead of a key's hash.
    kept = [
        (record, orphan or error is not None)
        for record, skip, orphan in zip(every, skipped, orphaned, strict=True)
        if not skip and (orphan or record.key is not None or error is not None)
    ]
    count = len(kept)
    columns = {
        "lane": pa.array([task.lane] * count, pa.int32()),
        "key": pa.array(
            [
                str(each.offset).encode() if each.key is None else blake2b(each.key, digest_size=HASH_BYTES).digest()
                for each, _ in kept
            ],
            pa.binary(),
        ),
        "label": pa.array(
            [each.key[:KEY_BYTES] if orphan and each.key is not None else None for each, orphan in kept], pa.binary()
        ),
        "orphan": pa.array([orphan for _, orphan in kept], pa.bool_()),
        "side": pa.array([task.side] * count, pa.string()),
        "offset": pa.array([each.offset for each, _ in kept], pa.int64()),
        "timestamp": pa.array([each.timestamp for each, _ in kept], pa.int64()),
        "size": pa.array([len(each.key or b"") + len(each.value or b"") for each, _ in kept], pa.int64()),
        "tombstone": pa.array([each.value is None for each, _ in kept], pa.bool_()),
        "error": pa.array([error] * count, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def keep_orphans(orphans: DataFrame, places: Mapping[int, TopicPartition], folder: str) -> int:
    """Write a file for each lane that has orphans, by their offsets; one of an earlier attempt is replaced.

    Args:
        orphans: as `spark.jobs.reconcile.conflicts.orphans_of` yields them.
        places: partitions of the source by the lanes' numbers.
        folder: the run's, a URI or a path.

    Returns:
        the number of orphans.

    Raises:
        Exception: of Spark, when the folder did not take a file in several attempts.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 -- in the worker

        files = open_job_files(folder)
        for lane, parts in groupby(chain.from_iterable(map(_of_lanes, batches)), key=itemgetter(0)):
            topic, partition = places[lane]
            rows = (_placed(part, topic, partition) for _, part in parts)
            first = next(rows)
            # Spark's own writer would need the right to delete objects.
            name = lane_file(topic, partition, "orphans", end=".parquet")
            count = write_batches(files, name, chain([first], rows), first.schema)
            yield pa.RecordBatch.from_pydict({"count": pa.array([count], pa.int64())})

    other = [
        sql.col(f"other.{name}").alias(f"other_{name}") for name in ("side", "offset", "timestamp", "size", "tombstone")
    ]
    rows = (
        orphans.filter("error IS NULL")
        .select(
            "lane",
            "offset",
            "timestamp",
            "size",
            "tombstone",
            sql.col("label").alias("key"),
            sql.when(sql.col("label").isNotNull(), sql.hex("key")).alias("key_hash"),
            *other,
        )
        .repartition("lane")
        .sortWithinPartitions("lane", "offset")
    )
    return sum(row["count"] for row in rows.mapInArrow(write, "count long").collect())


def _of_lanes(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    from pyarrow import compute  # noqa: PLC0415 -- in the worker

    lanes = rows.column("lane")
    for lane in lanes.unique().to_pylist():
        yield lane, rows.filter(compute.equal(lanes, lane))


def _placed(rows: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Rows of one lane with its names instead of its number."""
    import pyarrow as pa  # noqa: PLC0415 -- in the worker

    names = {
        "topic": pa.array([topic] * rows.num_rows),
        "partition": pa.array([partition] * rows.num_rows, pa.int32()),
    }
    columns = {name: rows.column(name) for name in rows.schema.names if name != "lane"}
    return pa.RecordBatch.from_pydict(names | columns)
