"""DynamoDB calls of an event without boto3's overhead: signed by botocore, sent over one kept connection.

boto3 takes 2 ms of CPU for a call, and an event makes two or three: endpoint rules, hooks, retry handlers, a parser for
every shape. That is for the rare call that is no success at once. So this is only ever a first try. Whatever
else happens to it, boto3 makes the same request again, with all that it handles: retries, renewed credentials, a clock
that is off, and the error as an exception.

An insert whose answer was lost is then answered as one that lost its race. boto3's own retries do that as well, and the
chain finds its own run.
"""

from __future__ import annotations

import base64
import os
import ssl
import threading
import zlib
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3.util.wait import wait_for_read

OPERATIONS: Final = frozenset({"BatchExecuteStatement", "BatchGetItem", "Query"})
"""Those of an event."""

_TARGET: Final = "DynamoDB_20120810."
_CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_OK: Final = 200


class Credentials(Protocol):
    """botocore's, fixed or renewed when they near their end."""

    def get_frozen_credentials(self) -> Any:
        """The ones to sign with now."""


class DirectLine:
    """One connection to one region's DynamoDB, opened when it is needed, and again when it was lost."""

    def __init__(
        self, connection: HTTPConnection, endpoint: str, *, region: str, credentials: Credentials, agent: str
    ) -> None:
        """Args: connection: to the endpoint, opened here when it is needed. agent: how we name ourselves."""
        self._connection = connection
        self._url = endpoint.rstrip("/") + "/"
        self._region = region
        self._credentials = credentials
        self._agent = agent
        self._free = threading.Lock()

    def call(self, operation: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Make one call, once.

        Args:
            operation: one of `OPERATIONS`.
            request: as boto3 takes it; bytes stand as bytes.

        Returns:
            The answer as boto3 gives it, without `ResponseMetadata`. None without success, for any reason:
            boto3, given the same call, retries or raises.
        """
        if not self._free.acquire(blocking=False):
            return None  # another thread is using it
        try:
            return self._call(operation, msgspec.json.encode(request))
        except (OSError, HTTPException, msgspec.DecodeError):
            self._connection.close()
            return None
        finally:
            self._free.release()

    def _call(self, operation: str, body: bytes) -> dict[str, Any] | None:
        headers = {"X-Amz-Target": _TARGET + operation, "Content-Type": _CONTENT_TYPE, "User-Agent": self._agent}
        signed = AWSRequest("POST", self._url, data=body, headers=headers)
        SigV4Auth(self._credentials.get_frozen_credentials(), "dynamodb", self._region).add_auth(signed)
        socket = self._connection.sock
        if socket is not None and wait_for_read(socket, timeout=0):
            self._connection.close()  # nothing is due, so this is its end: it lay idle, or the environment was frozen
        self._connection.request("POST", "/", body=body, headers=dict(signed.headers))
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != _OK or not _whole(answer, response.headers.get("x-amz-crc32")):
            return None
        found: dict[str, Any] = _with_bytes(msgspec.json.decode(answer))
        return found


class DirectClient:
    """A boto3 DynamoDB client whose `OPERATIONS` are tried on a direct line first; everything else is boto3's."""

    def __init__(self, client: Any, line: DirectLine) -> None:
        """Args: client: boto3's, for whatever is no success at once."""
        self._boto3 = client
        self._line = line

    def query(self, **request: Any) -> Any:
        """As boto3's `query`."""
        return self._first("Query", request, self._boto3.query)

    def batch_get_item(self, **request: Any) -> Any:
        """As boto3's `batch_get_item`."""
        return self._first("BatchGetItem", request, self._boto3.batch_get_item)

    def batch_execute_statement(self, **request: Any) -> Any:
        """As boto3's `batch_execute_statement`."""
        return self._first("BatchExecuteStatement", request, self._boto3.batch_execute_statement)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._boto3, name)

    def _first(self, operation: str, request: dict[str, Any], by_boto3: Callable[..., Any]) -> Any:
        answer = self._line.call(operation, request)
        return by_boto3(**request) if answer is None else answer


def direct_client(client: Any, credentials: Credentials | None) -> Any:
    """The client that tries `OPERATIONS` directly first. Behind a proxy it is boto3's own.

    Args:
        client: boto3's.
        credentials: those of its session; None where it has none, so that boto3 raises.
    """
    endpoint, config = client.meta.endpoint_url, client.meta.config
    if credentials is None or get_environ_proxies(endpoint):
        return client
    line = DirectLine(
        _connection(endpoint, config.read_timeout),
        endpoint,
        region=client.meta.region_name,
        credentials=credentials,
        agent=config.user_agent,
    )
    return DirectClient(client, line)


def _connection(endpoint: str, timeout: float) -> HTTPConnection:
    parts = urlsplit(endpoint)
    host = str(parts.hostname)
    if parts.scheme == "http":
        return HTTPConnection(host, parts.port, timeout=timeout)
    # Whom botocore trusts: what its two variables name, or the bundle that it brings.
    trust = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or get_cert_path(verify=True)
    trusted = ssl.create_default_context(cafile=trust)
    return HTTPSConnection(host, parts.port, timeout=timeout, context=trusted)


def _whole(answer: bytes, checksum: str | None) -> bool:
    return checksum is None or str(zlib.crc32(answer)) == checksum


def _with_bytes(answer: Any) -> Any:
    """The answer with its binary attributes as bytes: `{"B": "..."}` is how DynamoDB writes one, at any depth."""
    if isinstance(answer, list):
        return [_with_bytes(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    if isinstance(text := answer.get("B"), str):
        return {"B": base64.b64decode(text)}
    return {name: _with_bytes(value) for name, value in answer.items()}
