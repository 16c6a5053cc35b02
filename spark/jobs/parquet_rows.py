"""Rows of a job's results as a Parquet file in its run's folder: for results too many for a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirrorless.ports.stores import JobFiles

if TYPE_CHECKING:
    import pyarrow as pa


def write_rows(files: JobFiles, name: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Write a file of rows, whole; one of that name is replaced.

    Args:
        files: the run's folder.
        name: of the file, with its folders.
        rows: a value, or None, by column.
        schema: of all columns.

    Raises:
        Retriable: the folder's store does not take it.
    """
    import pyarrow as pa  # noqa: PLC0415 -- a driver or a worker without results does not need it

    write_batches(files, name, pa.Table.from_pylist(list(rows), schema).to_batches(), schema)


def write_batches(files: JobFiles, name: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write a file of batches of rows, as `write_rows`; how many rows there were.

    Raises:
        Retriable: the folder's store does not take it.
    """
    import pyarrow as pa  # noqa: PLC0415 -- as above
    import pyarrow.parquet  # noqa: PLC0415 -- same

    sink, count = pa.BufferOutputStream(), 0
    with pa.parquet.ParquetWriter(sink, schema, compression="zstd") as file:
        for batch in batches:
            file.write_batch(batch)
            count += batch.num_rows
    files.write(name, sink.getvalue().to_pybytes())
    return count
