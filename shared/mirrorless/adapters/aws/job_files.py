"""A job run's folder, on disk or in S3 (see `mirrorless.jobs.request`), and the one S3 client for it and for archives.

Failures of the client are raised as this project's errors. The usual credentials and region; `AWS_ENDPOINT_URL_S3`
points it at a local one. A bucket in another region than the job's is found by S3's own redirect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.ports.stores import JobFiles

CONNECTIONS = 16
"""At a time: an archive's footers are read together."""

_GONE = frozenset({"NoSuchBucket"})
_DENIED = frozenset({"AccessDenied", "403", "KMS.AccessDeniedException"})


def s3_client() -> Any:
    """A client that is safe to share between threads."""
    import boto3  # noqa: PLC0415 -- a run on this machine needs none
    from botocore.config import Config  # noqa: PLC0415

    # A minute to read: a row group of an archive is one answer. What fails after all attempts is the task's to retry.
    config = Config(
        connect_timeout=5,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 6},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
    )
    return boto3.client("s3", config=config)


def bucket_and_key(uri: str) -> tuple[str, str]:
    """The two parts of `s3://bucket/some/key`, without a slash at the end.

    Raises:
        ConfigurationError: there is no bucket in it.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise ConfigurationError("this is no place in S3", where=uri, hint="write s3://BUCKET/PREFIX")
    return bucket, key.strip("/")


@contextmanager
def s3_translated(what: str, where: str) -> Iterator[None]:
    """Turn botocore's errors into ours: `Retriable`, or `ConfigurationError` where no retry finds a bucket."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 -- see above

    try:
        yield
    except ClientError as exc:
        code = exc.response.get("Error", {}).get("Code", "")
        if code in _GONE:
            raise ConfigurationError("there is no such bucket", where=where, hint="check its name") from exc
        hint = "grant these credentials its objects, its list and its key" if code in _DENIED else ""
        raise Retriable(f"S3 refused to {what}: {exc}", where=where, hint=hint) from exc
    except BotoCoreError as exc:
        raise Retriable(f"S3 did not answer to {what}: {exc}", where=where) from exc


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
