"""The orphans of a reconcile as Parquet in its run's folder, `orphans/<topic>-<partition>.parquet`: a row for each.

A row has a record's place, time and size, the beginning of its key, and the same of the newest other record of its key,
without the contents. A report lists a few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.ports.kafka import TopicPartition
from spark.jobs.parquet_rows import write_batches

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

        files = open_job_files(folder)
        for lane, parts in groupby(chain.from_iterable(map(_by_lane, batches)), key=itemgetter(0)):
            topic, partition = places[lane]
            rows = (_placed(part, topic, partition) for _, part in parts)
            first = next(rows)
            # Spark's own writer would need the right to delete objects.
            name = f"orphans/{topic}-{partition}.parquet"
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


def _by_lane(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
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
