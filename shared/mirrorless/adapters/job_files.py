"""A job run's folder: on disk, or in S3. See `mirrorless.jobs.files`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from mirrorless.errors import Retriable
from mirrorless.jobs.files import JobFiles

TYPES = {".json": "application/json", ".html": "text/html; charset=utf-8"}


def open_job_files(place: str, *, kms_key_arn: str | None = None) -> JobFiles:
    """The folder at an `s3://bucket/prefix` URI or at a path."""
    if place.startswith("s3://"):
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        return S3JobFiles(bucket, prefix.rstrip("/"), kms_key_arn=kms_key_arn)
    return LocalJobFiles(Path(place))


class LocalJobFiles:
    """Implements `JobFiles` on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    @property
    def place(self) -> str:
        """See `JobFiles.place`."""
        return str(self._folder)

    def write(self, name: str, content: bytes) -> None:
        """See `JobFiles.write`."""
        path = self._folder / name
        beside = path.with_name(f".{path.name}.{os.getpid()}.{uuid4().hex[:8]}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(content)
            beside.replace(path)
        except OSError as exc:
            raise Retriable(f"the file cannot be written: {exc}", where=str(path)) from exc

    def read(self, name: str) -> bytes | None:
        """See `JobFiles.read`."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise Retriable(f"the file cannot be read: {exc}", where=str(self._folder / name)) from exc

    def names(self, under: str = "") -> list[str]:
        """See `JobFiles.names`."""
        found = (path.relative_to(self._folder) for path in self._folder.rglob("*") if path.is_file())
        return sorted(
            path.as_posix() for path in found if path.as_posix().startswith(under) and not path.name.startswith(".")
        )


class S3JobFiles:
    """Implements `JobFiles` in S3."""

    def __init__(self, bucket: str, prefix: str, *, kms_key_arn: str | None = None, client: Any = None) -> None:
        """Args: client: a boto3 S3 client; the usual one where none is given."""
        import boto3  # noqa: PLC0415 -- a run on this machine needs none

        self._client = client or boto3.client("s3")
        self._bucket, self._prefix = bucket, prefix
        self._encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_arn} if kms_key_arn else {}

    @property
    def place(self) -> str:
        """See `JobFiles.place`."""
        return f"s3://{self._bucket}/{self._prefix}"

    def write(self, name: str, content: bytes) -> None:
        """See `JobFiles.write`."""
        kind = TYPES.get(Path(name).suffix, "application/octet-stream")
        with self._translated(f"write {name}"):
            self._client.put_object(
                Bucket=self._bucket, Key=f"{self._prefix}/{name}", Body=content, ContentType=kind, **self._encryption
            )

    def read(self, name: str) -> bytes | None:
        """See `JobFiles.read`."""
        with self._translated(f"read {name}"):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}")
            except self._client.exceptions.NoSuchKey:
                return None
            content: bytes = answer["Body"].read()
            return content

    def names(self, under: str = "") -> list[str]:
        """See `JobFiles.names`."""
        found = []
        with self._translated("list its files"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}/{under}"
            )
            for page in pages:
                found += [each["Key"].removeprefix(f"{self._prefix}/") for each in page.get("Contents", [])]
        return sorted(found)

    def _translated(self, what: str) -> _Translated:
        return _Translated(what, self.place)


class _Translated:
    """Turns botocore's errors into `Retriable`."""

    def __init__(self, what: str, where: str) -> None:
        self._what, self._where = what, where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 -- see above

        if isinstance(error, BotoCoreError | ClientError):
            raise Retriable(
                f"S3 did not {self._what}: {error}",
                where=self._where,
                hint="check that the bucket is there, and that these credentials may use it",
            ) from error
