"""One S3 client for job files and archives; its failures are raised as this project's errors.

The usual credentials and region; `AWS_ENDPOINT_URL_S3` points it at a local one. A bucket in another region than the
job's is found by S3's own redirect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mirrorless.errors import ConfigurationError, Retriable

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
