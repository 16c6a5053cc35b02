"""The orphans of a lane beside the other records of their keys, and each of them in the run's folder.

`orphans/<topic>-<partition>.parquet` has a row for each: its place, time and size, the beginning of its key, and the
same of the newest other record of its key, without the contents. A report lists a few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import lane_file
from mirrorless.ports.stores import JobFiles
from mirrorless.reconcile.conflicts import ConflictSearch, ConflictSide, ConflictTask, KeptOrphan, LaneConflicts
from mirrorless.reconcile.inspect import chunks_of
from mirrorless.records.record import Record
from spark.jobs.clients import warm_log
from spark.jobs.parquet_rows import write_batches

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 20_000
"""Of one batch of a file."""


def find_conflicts(task: ConflictTask) -> LaneConflicts:
    """Do the task.

    Raises:
        Retriable: a cluster or the run's folder does not answer.
    """
    settings = task.settings
    places = {"source": (settings.source, task.topic), "target": (settings.target, task.remote_topic)}

    def read(side: ConflictSide, wanted: OffsetRange) -> Iterator[Sequence[Record]]:
        cluster, topic = places[side]
        log = warm_log(msgspec.json.encode(cluster), settings.flow)
        return (chunk.records for chunk in chunks_of(log, topic, task.partition, wanted))

    search = ConflictSearch(task, read)
    keep_orphans(open_job_files(task.files), task, search.orphans())
    return search.found()


def keep_orphans(files: JobFiles, task: ConflictTask, orphans: Iterator[Sequence[KeptOrphan]]) -> None:
    """Write all orphans of a lane, if it has some; the file of an earlier attempt is replaced.

    Raises:
        Retriable: the run's folder does not take it; or as of the orphans.
    """
    if (first := next(orphans, None)) is None:
        return
    name = lane_file(task.topic, task.partition, "orphans", end=".parquet")
    write_batches(files, name, _batches(task, chain([first], orphans)), _schema())


def _batches(task: ConflictTask, orphans: Iterable[Sequence[KeptOrphan]]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 -- in the worker

    for some in orphans:
        rows = [
            {
                "topic": task.topic,
                "partition": task.partition,
                "offset": each.offset,
                "timestamp": each.timestamp,
                "size": each.size,
                "tombstone": each.tombstone,
                "key": each.label,
                "key_hash": None if each.label is None else each.hash.hex().upper(),
            }
            | {
                f"other_{name}": None if each.other is None else getattr(each.other, name.replace("size", "bytes"))
                for name in ("side", "offset", "timestamp", "size", "tombstone")
            }
            for each in some
        ]
        for first in range(0, len(rows), BATCH_ROWS):
            yield pa.RecordBatch.from_pylist(rows[first : first + BATCH_ROWS], _schema())


def _schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 -- in the worker

    place = [("offset", pa.int64()), ("timestamp", pa.int64()), ("size", pa.int64()), ("tombstone", pa.bool_())]
    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            *place,
            ("key", pa.binary()),
            ("key_hash", pa.string()),
            ("other_side", pa.string()),
            *((f"other_{name}", kind) for name, kind in place),
        ]
    )
