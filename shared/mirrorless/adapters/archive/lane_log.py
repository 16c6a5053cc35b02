"""A lane's log from an archive of Parquet files. See `mirrorless.jobs.archive` for the format.

    footers of the files  ->  pieces: row groups with records of the lane  ->  merged by offset  ->  chunks

Only what is needed is read: files of other lanes are recognized by their paths or their statistics, row groups by their
least and greatest offset. In memory is one row group of each file that overlaps at the current offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirrorless.adapters.archive.files import ArchiveFile, ArchiveFiles, open_archive_files
from mirrorless.adapters.archive.records import CONTENT, check_schema, records_of
from mirrorless.adapters.aws.s3 import CONNECTIONS
from mirrorless.errors import ArchiveBroken, Retriable
from mirrorless.jobs.archive import ArchivePiece, in_chunks, merged
from mirrorless.jobs.copy_task import CHUNK_BYTES, CHUNK_RECORDS, Chunk, OffsetRange
from mirrorless.ports.kafka import Deadline
from mirrorless.record import Record

PLACE = ("topic", "partition")


class ParquetArchive:
    """Implements `LaneLog` on a folder of Parquet files. Footers are cached: the files must not change."""

    def __init__(self, files: ArchiveFiles) -> None:
        """Args: files: the folder; see `open_archive`."""
        self._files = files
        self._listed: dict[str, ArchiveFile] | None = None
        self._footers: dict[str, Any] = {}
        self._pieces: dict[tuple[str, int], list[ArchivePiece]] = {}

    @property
    def place(self) -> str:
        """The folder's URI or path."""
        return self._files.place

    def lanes(self) -> dict[str, tuple[int, ...]]:
        """The partitions that the archive has, by topic.

        Raises:
            ConfigurationError: there is no such folder.
            ArchiveBroken: a file is no Parquet file, or misses a column.
        """
        found: set[tuple[str, int]] = set()
        for file in self._with_footers(self._all()):
            for group in range(self._footer(file).num_row_groups):
                values = [self._only_value(file, group, name) for name in PLACE]
                if None not in values:
                    found.add((str(values[0]), int(values[1])))
                else:
                    table = self._table(file, group, PLACE).combine_chunks()
                    for row in table.group_by(list(PLACE)).aggregate([]).to_pylist():
                        found.add((row["topic"], row["partition"]))
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(found):
            topics.setdefault(topic, []).append(partition)
        return {topic: tuple(partitions) for topic, partitions in topics.items()}

    def bounds(self, topic: str, partition: int, deadline: Deadline | None = None) -> OffsetRange:  # noqa: ARG002 -- the port's
        """See `LaneLog.bounds`: from the least offset to behind the greatest; [0, 0) where there is none."""
        pieces = self.pieces(topic, partition)
        if not pieces:
            return OffsetRange(0, 0)
        return OffsetRange(min(piece.first for piece in pieces), max(piece.last for piece in pieces) + 1)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:  # noqa: ARG002 -- the port's
        """See `LaneLog.read`. A hole is passed over: the survey before the copy reports it."""
        if wanted.first >= wanted.next:
            return iter(())
        inside = self.inside(topic, partition, wanted)
        where = f"{self.place} {topic}-{partition}"
        records = merged(inside, lambda piece: self._records(piece, topic, partition, wanted), where=where)
        return in_chunks(records, wanted)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """The first offset whose record is of this time (ms since the epoch) or later; None where none is."""
        earliest: int | None = None
        for piece in sorted(self.pieces(topic, partition), key=lambda piece: piece.first):
            if earliest is not None and piece.first > earliest:
                break
            table = self.rows(piece, topic, partition, ("timestamp_ms",))
            found = pc.min(table.filter(pc.greater_equal(table["timestamp_ms"], timestamp))["offset"]).as_py()
            if found is not None:
                earliest = found if earliest is None else min(earliest, found)
        return earliest

    # Pieces

    def pieces(self, topic: str, partition: int) -> list[ArchivePiece]:
        """The pieces of a lane, in no order."""
        lane = (topic, partition)
        if lane not in self._pieces:
            wanted = {"topic": topic, "partition": str(partition)}
            files = [
                file
                for file in self._all()
                if all(file.in_path.get(name, value) == value for name, value in wanted.items())
            ]
            self._pieces[lane] = [
                piece
                for file in self._with_footers(files)
                for group in range(self._footer(file).num_row_groups)
                if (piece := self._piece(file, group, topic, partition)) is not None
            ]
        return self._pieces[lane]

    def inside(self, topic: str, partition: int, wanted: OffsetRange) -> list[ArchivePiece]:
        """The pieces that reach into a range."""
        return [
            each for each in self.pieces(topic, partition) if each.first < wanted.next and each.last >= wanted.first
        ]

    def rows(self, piece: ArchivePiece, topic: str, partition: int, columns: Iterable[str]) -> Any:
        """The lane's rows of a piece, `offset` and these columns, as they stand."""
        return self._of_lane(self._file(piece), piece.group, topic, partition, columns)

    def footprint(self, piece: ArchivePiece) -> tuple[int, set[str]]:
        """Bytes of a piece's keys, values and headers before compression, and the clusters that it names."""
        group = self._footer(self._file(piece)).row_group(piece.group)
        size, clusters = 0, set()
        for index in range(group.num_columns):
            column = group.column(index)
            name = column.path_in_schema.partition(".")[0]
            if name in CONTENT:
                size += column.total_uncompressed_size
            elif name == "src_cluster" and column.statistics is not None and column.statistics.has_min_max:
                clusters |= {str(column.statistics.min), str(column.statistics.max)}
        return size * piece.rows // max(1, group.num_rows), clusters

    def _piece(self, file: ArchiveFile, group: int, topic: str, partition: int) -> ArchivePiece | None:
        footer = self._footer(file).row_group(group)
        first = last = None
        rows, pure = footer.num_rows, True
        for name, value in (("topic", topic), ("partition", partition)):
            least, greatest = self._statistics(file, group, name)
            if least is None or greatest is None:
                pure = False
            elif not least <= value <= greatest:
                return None
            else:
                pure = pure and least == greatest
        if pure:
            first, last = self._statistics(file, group, "offset")
        if first is None or last is None:
            # Several lanes stand in it, or its writer kept no statistics: then the offsets themselves are read.
            offsets = self._of_lane(file, group, topic, partition, ())["offset"]
            if not len(offsets):
                return None
            rows, least_and_greatest = len(offsets), pc.min_max(offsets).as_py()
            first, last = least_and_greatest["min"], least_and_greatest["max"]
        return ArchivePiece(file=file.name, group=group, first=first, last=last, rows=rows)

    # Records

    def _records(self, piece: ArchivePiece, topic: str, partition: int, wanted: OffsetRange) -> Iterator[list[Record]]:
        """A piece's records of a range in order of offset: as the file streams them, or sorted where it is not."""
        file = self._file(piece)
        where = f"{self.place}/{file.name}"
        offsets = self._of_lane(file, piece.group, topic, partition, ())["offset"].combine_chunks()
        in_order = len(offsets) < 2 or pc.all(pc.less_equal(offsets[:-1], offsets[1:])).as_py()  # noqa: PLR2004 -- one is in order
        if not in_order:
            table = self._of_lane(file, piece.group, topic, partition, ("timestamp_ms", *CONTENT))
            batches: Iterable[Any] = _inside(table, wanted).sort_by("offset").to_batches(max_chunksize=CHUNK_RECORDS)
        else:
            batches = self._stream(file, piece.group, topic, partition, wanted)
        for batch in batches:
            if batch.num_rows:
                yield records_of(batch, where)

    def _stream(self, file: ArchiveFile, group: int, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Any]:
        columns = self._columns(file, ("timestamp_ms", *CONTENT))
        meta = self._footer(file).row_group(group)
        at_once = max(1, min(CHUNK_RECORDS, CHUNK_BYTES * meta.num_rows // max(1, meta.total_byte_size)))
        with self._opened(file) as parquet:
            for batch in parquet.iter_batches(at_once, row_groups=[group], columns=columns, use_threads=False):
                yield from _inside(
                    self._only_lane(pa.Table.from_batches([batch]), topic, partition), wanted
                ).to_batches()

    # Files

    def _all(self) -> Iterable[ArchiveFile]:
        return self._by_name().values()

    def _by_name(self) -> dict[str, ArchiveFile]:
        if self._listed is None:
            self._listed = {file.name: file for file in self._files.list()}
        return self._listed

    def _file(self, piece: ArchivePiece) -> ArchiveFile:
        return self._by_name()[piece.file]

    def _with_footers(self, files: Iterable[ArchiveFile]) -> list[ArchiveFile]:
        """The same files, their footers read, many at a time."""
        files = list(files)
        unread = [file for file in files if file.name not in self._footers]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for file, footer in zip(unread, pool.map(self._read_footer, unread), strict=True):
                self._footers[file.name] = footer
        return files

    def _footer(self, file: ArchiveFile) -> Any:
        return self._footers[file.name]

    def _read_footer(self, file: ArchiveFile) -> Any:
        with self._opened(file) as parquet:
            check_schema(parquet.schema_arrow, file.in_path, f"{self.place}/{file.name}")
            return parquet.metadata

    @contextmanager
    def _opened(self, file: ArchiveFile) -> Iterator[Any]:
        where = f"{self.place}/{file.name}"
        try:
            with (
                self._files.open(file) as source,
                pq.ParquetFile(source, metadata=self._footers.get(file.name), pre_buffer=True) as parquet,
            ):
                yield parquet
        except pa.ArrowInvalid as exc:
            raise ArchiveBroken(f"this is no whole Parquet file: {exc}", where=where, hint="take it away") from exc
        except OSError as exc:
            raise Retriable(f"the file cannot be read: {exc}", where=where) from exc

    def _columns(self, file: ArchiveFile, more: Iterable[str]) -> list[str]:
        return [*(name for name in PLACE if name not in file.in_path), "offset", *more]

    def _table(self, file: ArchiveFile, group: int, columns: Iterable[str]) -> Any:
        """Columns of a row group, `topic` and `partition` as wanted from the path or the file."""
        wanted = list(columns)
        with self._opened(file) as parquet:
            stored = [name for name in wanted if name not in PLACE or name not in file.in_path]
            table = parquet.read_row_group(group, columns=stored, use_threads=False)
        for name in PLACE:
            if name in wanted and name in file.in_path:
                value: str | int = file.in_path[name] if name == "topic" else int(file.in_path[name])
                table = table.append_column(name, pa.array([value] * table.num_rows))
        return table

    def _of_lane(self, file: ArchiveFile, group: int, topic: str, partition: int, columns: Iterable[str]) -> Any:
        table = self._only_lane(self._table(file, group, self._columns(file, columns)), topic, partition)
        if table["offset"].null_count:
            raise ArchiveBroken("a row has no offset", where=f"{self.place}/{file.name}", hint="write it again")
        return table

    def _only_lane(self, table: Any, topic: str, partition: int) -> Any:
        for name, value in (("topic", topic), ("partition", partition)):
            if name in table.column_names:
                mask = pc.equal(table[name], value)
                if not pc.all(mask).as_py():
                    table = table.filter(mask)
        return table

    def _statistics(self, file: ArchiveFile, group: int, name: str) -> tuple[Any, Any]:
        """Least and greatest value of a column in a row group; (None, None) where the file has no statistics."""
        if name in file.in_path:
            value: str | int = file.in_path[name] if name == "topic" else int(file.in_path[name])
            return value, value
        footer = self._footer(file).row_group(group)
        column = next(each for i in range(footer.num_columns) if (each := footer.column(i)).path_in_schema == name)
        found = column.statistics
        if found is None or not found.has_min_max or found.null_count:
            return None, None
        return found.min, found.max

    def _only_value(self, file: ArchiveFile, group: int, name: str) -> Any:
        least, greatest = self._statistics(file, group, name)
        return least if least == greatest else None


def open_archive(place: str) -> ParquetArchive:
    """The archive at an `s3://bucket/prefix` URI or at a path."""
    return ParquetArchive(open_archive_files(place))


def _inside(table: Any, wanted: OffsetRange) -> Any:
    """The rows of a range."""
    offsets = table["offset"]
    if not table.num_rows:
        return table
    ends: Mapping[str, int] = pc.min_max(offsets).as_py()
    if ends["min"] >= wanted.first and ends["max"] < wanted.next:
        return table
    return table.filter(pc.and_(pc.greater_equal(offsets, wanted.first), pc.less(offsets, wanted.next)))
