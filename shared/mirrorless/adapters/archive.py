"""A lane's log from an archive of Parquet files. See `mirrorless.jobs.archive` for the format.

    footers of the files  ->  pieces: row groups with records of the lane  ->  merged by offset  ->  chunks

Only what is needed is read: files of other lanes are recognized by their paths or their statistics, row groups by their
least and greatest offset. In memory is one row group of each file that overlaps at the current offset.

The files are on disk or in S3, which is read range by range through boto3, as everywhere in this package: one way to
find credentials, one set of errors.

Records come from the columns byte for byte: null is not empty, headers keep their order and repeat. Rows of another
shape than the documented one are refused: nothing is guessed about records.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from mirrorless.adapters.aws.job_files import CONNECTIONS, bucket_and_key, s3_client, s3_translated
from mirrorless.clock import Deadline
from mirrorless.errors import ArchiveBroken, ConfigurationError, Retriable
from mirrorless.jobs.archive import ArchivePiece, in_chunks, merged
from mirrorless.jobs.copy_task import CHUNK_BYTES, CHUNK_RECORDS, Chunk, OffsetRange
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import NOTHING_MORE, Arrivals
from mirrorless.records.record import Headers, Record, size_of

SUFFIX = ".parquet"


class ArchiveFile(msgspec.Struct, frozen=True):
    """A file of an archive."""

    name: str
    """Below the archive's folder."""
    size: int

    @property
    def in_path(self) -> Mapping[str, str]:
        """Columns whose value is in the path, as `topic=orders/partition=3/x.parquet` has them."""
        pairs = (part.partition("=") for part in self.name.split("/")[:-1] if "=" in part)
        return {name: unquote(value) for name, _, value in pairs}


class ArchiveFiles(Protocol):
    """An archive's folder. Every method raises Retriable when the store does not answer."""

    @property
    def place(self) -> str:
        """Its URI or path."""
        ...

    def list(self) -> list[ArchiveFile]:
        """Every Parquet file below it, in order of name. Hidden files and those of unfinished writes are left out.

        Raises:
            ConfigurationError: there is no such folder.
        """
        ...

    def open(self, file: ArchiveFile) -> Any:
        """A file object to seek and read in."""
        ...


def open_archive_files(place: str) -> ArchiveFiles:
    """The folder at an `s3://bucket/prefix` URI or at a path."""
    return S3ArchiveFiles(*bucket_and_key(place)) if place.startswith("s3://") else LocalArchiveFiles(Path(place))


class LocalArchiveFiles:
    """Implements `ArchiveFiles` on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    @property
    def place(self) -> str:
        """See `ArchiveFiles.place`."""
        return str(self._folder)

    def list(self) -> list[ArchiveFile]:
        """See `ArchiveFiles.list`."""
        if not self._folder.is_dir():
            raise ConfigurationError("there is no such folder", where=self.place, hint="check the archive's path")
        found = ((path.relative_to(self._folder).as_posix(), path) for path in self._folder.rglob(f"*{SUFFIX}"))
        return sorted((ArchiveFile(name, path.stat().st_size) for name, path in found if _visible(name)), key=_name)

    def open(self, file: ArchiveFile) -> Any:
        """See `ArchiveFiles.open`."""
        try:
            return (self._folder / file.name).open("rb")
        except OSError as exc:
            raise Retriable(f"the file cannot be read: {exc}", where=f"{self.place}/{file.name}") from exc


class S3ArchiveFiles:
    """Implements `ArchiveFiles` in S3."""

    def __init__(self, bucket: str, prefix: str, *, client: Any = None) -> None:
        """Args: client: of `s3_client`, made where none is given."""
        self._client = client or s3_client()
        self._bucket, self._under = bucket, f"{prefix}/" if prefix else ""

    @property
    def place(self) -> str:
        """See `ArchiveFiles.place`."""
        return f"s3://{self._bucket}/{self._under}".rstrip("/")

    def list(self) -> list[ArchiveFile]:
        """See `ArchiveFiles.list`."""
        found = []
        with s3_translated("list the archive", self.place):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._under)
            for page in pages:
                for each in page.get("Contents", []):
                    name = each["Key"].removeprefix(self._under)
                    if name.endswith(SUFFIX) and _visible(name):
                        found.append(ArchiveFile(name, each["Size"]))
        return sorted(found, key=_name)

    def open(self, file: ArchiveFile) -> Any:
        """See `ArchiveFiles.open`."""
        return _S3File(self._client, self._bucket, self._under + file.name, file.size)


class _S3File(io.RawIOBase):
    """An object of S3 as a file: each read is a request, because pyarrow reads whole column chunks."""

    def __init__(self, client: Any, bucket: str, key: str, size: int) -> None:
        super().__init__()
        self._client, self._bucket, self._key, self._size = client, bucket, key, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        where = f"s3://{self._bucket}/{self._key}"
        with s3_translated("read the archive", where):
            request = {"Bucket": self._bucket, "Key": self._key, "Range": f"bytes={self._at}-{end - 1}"}
            content: bytes = self._client.get_object(**request)["Body"].read()
        if len(content) != end - self._at:
            raise Retriable(f"S3 gave {len(content)} of {end - self._at} bytes", where=where)
        self._at = end
        return content


def _visible(name: str) -> bool:
    """Whether no part of a path begins as Spark's unfinished and hidden files do."""
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def _name(file: ArchiveFile) -> str:
    return file.name


CONTENT: Final = ("key", "value", "headers")

_HINT = "bring the archive into the schema that the documentation shows; nothing is guessed about records"


def check_schema(schema: Any, in_path: Mapping[str, str], where: str) -> None:
    """Check that a file has the columns of records.

    Raises:
        ArchiveBroken: naming the first column that is missing or of another type.
    """
    wanted = {
        "topic": (_is_text, "string"),
        "partition": (kinds.is_integer, "int"),
        "offset": (kinds.is_integer, "bigint"),
        "timestamp_ms": (kinds.is_integer, "bigint, ms since the epoch"),
        "key": (_is_bytes, "binary"),
        "value": (_is_bytes, "binary"),
        "headers": (_is_headers, "array<struct<key string, value binary>>"),
    }
    for name, (fits, described) in wanted.items():
        if name in in_path:
            continue
        if name not in schema.names:
            raise ArchiveBroken(f"the file has no column {name} ({described})", where=where, hint=_HINT)
        found = schema.field(name).type
        if not fits(found):
            raise ArchiveBroken(f"column {name} is {found}, not {described}", where=where, hint=_HINT)


def records_of(batch: Any, where: str) -> list[Record]:
    """A batch's rows as records.

    Raises:
        ArchiveBroken: a row without a timestamp, or a header without a name.
    """
    timestamps = batch.column("timestamp_ms")
    if timestamps.null_count:
        raise ArchiveBroken("a record has no timestamp (-1 stands for none)", where=where, hint=_HINT)
    return [
        Record(offset, timestamp, headers, key, value)
        for offset, timestamp, headers, key, value in zip(
            batch.column("offset").to_pylist(),
            timestamps.to_pylist(),
            _headers(batch.column("headers"), where),
            _bytes(batch.column("key")),
            _bytes(batch.column("value")),
            strict=True,
        )
    ]


def _bytes(column: Any) -> list[bytes | None]:
    found: list[bytes | None] = (column.cast(pa.large_binary()) if _is_text(column.type) else column).to_pylist()
    return found


def _headers(column: Any, where: str) -> list[Headers]:
    pairs = column.flatten()
    if not len(pairs):
        return [[] for _ in range(len(column))]
    names = pairs.field(_index(pairs.type, "key")).to_pylist()
    values = _bytes(pairs.field(_index(pairs.type, "value")))
    if pairs.null_count or None in names:
        raise ArchiveBroken("a header has no name", where=where, hint=_HINT)
    every = list(zip(names, values, strict=True))
    found, at = [], 0
    for length in column.value_lengths().to_pylist():
        end = at + (length or 0)
        found.append(every[at:end])
        at = end
    return found


def _index(kind: Any, name: str) -> int:
    index: int = kind.get_field_index(name)
    return index


def _is_text(kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or _is_text(kind))


def _is_headers(kind: Any) -> bool:
    if not (kinds.is_list(kind) or kinds.is_large_list(kind)) or not kinds.is_struct(kind.value_type):
        return False
    pair = kind.value_type
    places = [_index(pair, name) for name in ("key", "value")]
    return -1 not in places and _is_text(pair.field(places[0]).type) and _is_bytes(pair.field(places[1]).type)


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


class ArchiveLog:
    """Implements `Log` over an archive: a chunk of a lane at a time, of one lane after the other."""

    def __init__(self, archive: ParquetArchive) -> None:
        """Args: archive: to read."""
        self._archive = archive
        self._chunks: dict[TopicPartition, Iterator[Chunk]] = {}

    def follow(self, offsets: Mapping[TopicPartition, int], below: Mapping[TopicPartition, int] = NOTHING_MORE) -> None:
        """See `Log.follow`."""
        for place, first in offsets.items():
            wanted = OffsetRange(first, below[place])
            self._chunks[place] = self._archive.read(*place, wanted, lambda: inf)

    def leave(self, places: Iterable[TopicPartition]) -> None:
        """See `Log.leave`."""
        for place in places:
            self._chunks.pop(place, None)

    def arrivals(self, seconds: float, *, records: int, size: int) -> Arrivals:  # noqa: ARG002 -- the port's
        """See `Log.arrivals`."""
        found = Arrivals()
        for place, chunks in list(self._chunks.items()):
            chunk = next(chunks, None)
            if chunk is not None:
                found.covered[place] = chunk.covered
                if chunk.records:
                    found.records[place] = chunk.records
                found.bytes = sum(map(size_of, chunk.records))
                break
        return found

    def reading_on(self) -> AbstractContextManager[None]:
        """See `Log.reading_on`."""
        return nullcontext()

    def close(self) -> None:
        """See `Log.close`."""
        self._chunks.clear()
