"""The orphans of a reconcile as Parquet in its run's folder, `orphans/<topic>-<partition>.parquet`: a row for each.

A row has a record's place, times, sizes and key, and the newest other record of its key, without the contents. A report
lists a few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.ports.kafka import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


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

        every = (each for batch in batches for each in _by_lane(batch))
        for lane, parts in groupby(every, key=itemgetter(0)):
            count = _write_lane(folder, places[lane], (rows for _, rows in parts))
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


def _by_lane(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    from pyarrow import compute  # noqa: PLC0415 -- in the worker

    lanes = rows.column("lane")
    for lane in lanes.unique().to_pylist():
        yield lane, rows.filter(compute.equal(lanes, lane))


def _write_lane(folder: str, place: TopicPartition, parts: Iterable[pa.RecordBatch]) -> int:
    """Write the file of a lane; Spark's own writer would need the right to delete objects."""
    import pyarrow as pa  # noqa: PLC0415 -- in the worker
    from pyarrow import parquet  # noqa: PLC0415 -- same

    (topic, partition), file, sink, count = place, None, pa.BufferOutputStream(), 0
    for part in parts:
        columns = {
            "topic": pa.array([topic] * part.num_rows),
            "partition": pa.array([partition] * part.num_rows, pa.int32()),
            **{name: part.column(name) for name in part.schema.names if name != "lane"},
        }
        rows = pa.RecordBatch.from_pydict(columns)
        file = file or parquet.ParquetWriter(sink, rows.schema, compression="zstd")
        file.write_batch(rows)
        count += rows.num_rows
    if file is not None:
        file.close()
        open_job_files(folder).write(f"orphans/{topic}-{partition}.parquet", sink.getvalue().to_pybytes())
    return count
