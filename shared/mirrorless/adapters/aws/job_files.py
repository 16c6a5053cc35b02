"""A job run's folder: on disk, or in S3. See `mirrorless.jobs.request`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from mirrorless.adapters.aws.s3 import bucket_and_key, s3_client, s3_translated
from mirrorless.errors import Retriable
from mirrorless.ports.stores import JobFiles

TYPES = {".json": "application/json", ".html": "text/html; charset=utf-8"}


def open_job_files(place: str, *, kms_key_arn: str | None = None) -> JobFiles:
    """The folder at an `s3://bucket/prefix` URI or at a path."""
    if place.startswith("s3://"):
        bucket, prefix = bucket_and_key(place)
        return S3JobFiles(bucket, prefix, kms_key_arn=kms_key_arn)
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
        found: list[str] = []
        for folder, _, files in os.walk(self._folder):
            inside = Path(folder).relative_to(self._folder).as_posix()
            found += [each if inside == "." else f"{inside}/{each}" for each in files if not each.startswith(".")]
        return sorted(name for name in found if name.startswith(under))


class S3JobFiles:
    """Implements `JobFiles` in S3."""

    def __init__(self, bucket: str, prefix: str, *, kms_key_arn: str | None = None, client: Any = None) -> None:
        """Args: client: of `s3_client`, made where none is given; kms_key_arn: where the bucket's own is not to be."""
        self._client = client or s3_client()
        self._bucket, self._prefix = bucket, prefix
        self._under = f"{prefix}/" if prefix else ""
        self._encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_arn} if kms_key_arn else {}

    @property
    def place(self) -> str:
        """See `JobFiles.place`."""
        return f"s3://{self._bucket}/{self._prefix}"

    def write(self, name: str, content: bytes) -> None:
        """See `JobFiles.write`."""
        kind = TYPES.get(Path(name).suffix, "application/octet-stream")
        with s3_translated(f"write {name}", self.place):
            self._client.put_object(
                Bucket=self._bucket, Key=f"{self._under}{name}", Body=content, ContentType=kind, **self._encryption
            )

    def read(self, name: str) -> bytes | None:
        """See `JobFiles.read`."""
        with s3_translated(f"read {name}", self.place):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=f"{self._under}{name}")
            except self._client.exceptions.NoSuchKey:
                return None
            except self._client.exceptions.ClientError as exc:
                # With the right to list a prefix only, S3 answers 403 for a missing object.
                if exc.response["Error"]["Code"] == "AccessDenied" and name not in self.names(name):
                    return None
                raise
            content: bytes = answer["Body"].read()
            return content

    def names(self, under: str = "") -> list[str]:
        """See `JobFiles.names`."""
        found = []
        with s3_translated("list the files", self.place):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._under}{under}"
            )
            for page in pages:
                found += [each["Key"].removeprefix(self._under) for each in page.get("Contents", [])]
        return sorted(found)
