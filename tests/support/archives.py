"""Archives of raw records as topic archivers write them: tidy, and as untidy as they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorless.records.record import Record
from tests.support.readback import read_topic

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("src_cluster", pa.string()),
        ("ingest_ts", pa.timestamp("us", "UTC")),
        ("run_id", pa.string()),
    ]
)

Row = tuple[str, int, Record]
"""Topic, partition and record."""


def rows_of(topic: str, partition: int, records: Sequence[Record]) -> list[Row]:
    """A lane's records as rows."""
    return [(topic, partition, record) for record in records]


def write_file(
    path: Path,
    rows: Sequence[Row],
    *,
    group: int = 1_000,
    cluster: str = "us-east",
    without: Sequence[str] = (),
    statistics: bool = True,
) -> None:
    """One Parquet file with the rows as they come, `group` to a row group; columns `without` are left out."""
    columns: Mapping[str, list[Any]] = {
        "topic": [topic for topic, _, _ in rows],
        "partition": [partition for _, partition, _ in rows],
        "offset": [record.offset for _, _, record in rows],
        "leader_epoch": [0 for _ in rows],
        "timestamp_ms": [record.timestamp for _, _, record in rows],
        "timestamp_type": [0 for _ in rows],
        "key": [record.key for _, _, record in rows],
        "value": [record.value for _, _, record in rows],
        "headers": [[{"key": name, "value": value} for name, value in record.headers] for _, _, record in rows],
        "src_cluster": [cluster for _ in rows],
        "ingest_ts": [0 for _ in rows],
        "run_id": ["archive-1" for _ in rows],
    }
    table = pa.table(columns, schema=SCHEMA).drop_columns(list(without))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group, write_statistics=statistics)


def write_archive(folder: Path, rows: Sequence[Row], *, per_file: int = 5_000, group: int = 1_000) -> None:
    """A tidy archive: a folder for each lane, files that follow each other."""
    lanes: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        lanes.setdefault(row[:2], []).append(row)
    for (topic, partition), each in lanes.items():
        for at in range(0, len(each), per_file):
            first = each[at][2].offset
            name = f"topic={topic}/partition={partition}/{first:020}.parquet"
            write_file(folder / name, each[at : at + per_file], group=group, without=("topic", "partition"))


def archive_topic(bootstrap: str, topic: str, folder: Path, *, per_file: int = 5_000) -> None:
    """Every visible record of a topic, to a tidy archive."""
    rows: list[Row] = []
    for partition, seen in read_topic(bootstrap, topic).items():
        contents = [(each.offset, each.content) for each in seen]
        records = [Record(at, it.timestamp, list(it.headers), it.key, it.value) for at, it in contents]
        rows += rows_of(topic, partition, records)
    write_archive(folder, rows, per_file=per_file)
