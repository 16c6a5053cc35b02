"""The files of an archive, on disk or in S3, which is read range by range.

S3 is read through boto3, as everywhere in this package: one way to find credentials, one set of errors.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from mirrorless.adapters.aws.s3 import bucket_and_key, s3_client, s3_translated
from mirrorless.errors import ConfigurationError, Retriable

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
