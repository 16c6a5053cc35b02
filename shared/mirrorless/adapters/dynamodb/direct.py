"""DynamoDB calls of an event without boto3's overhead, over kept connections.

boto3 takes 2 ms of CPU for a call, and an event makes two or three: endpoint rules, hooks, retry handlers, a parser for
every shape; `http.client` reads the few headers of an answer as it would read a mail's. That is for the rare call that
is no success at once. So this is only ever a first try. Whatever else happens to it, boto3 makes the same request
again, with all that it handles: retries, renewed credentials, a clock that is off, and the error as an exception. A
condition that does not hold is an answer, and raised as boto3 raises it.

An insert whose answer was lost is then answered as a collision. boto3's own retries do that as well, and whoever
inserts compares what stands there with its own.

The head of a request is AWS Signature Version 4, of one POST to `/` whose body is signed.
botocore's signer wants request objects and maps of headers that it builds and takes apart again, a third of a call's
CPU; what it signs is the same (tests/unit/adapters/test_dynamodb_direct.py).
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html)
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import ssl
import time
import zlib
from collections.abc import Callable
from functools import cache, lru_cache, partial
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import socket
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3.util.wait import wait_for_read

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_CONTENT_TYPE: Final = "application/x-amz-json-1.0"


def signed_head(
    body: bytes, *, target: str, host: str, region: str, agent: str, access_key: str, secret_key: str, token: str | None
) -> bytes:
    """The request's line and headers, as they are sent before the body.

    Args:
        body: the call as JSON.
        target: version and operation, such as `DynamoDB_20120810.PutItem`.
        host: of the endpoint, with its port where that is not the scheme's own.
        region: of the endpoint.
        agent: the user agent, which is not signed.
        access_key: of the credentials.
        secret_key: likewise.
        token: likewise; only those of a session have one.
    """
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signed = {"content-type": _CONTENT_TYPE, "host": host, "x-amz-date": now}  # in the order of their names
    if token:
        signed["x-amz-security-token"] = token
    signed["x-amz-target"] = target
    names = ";".join(signed)
    canonical = "\n".join(["POST", "/", "", *map(":".join, signed.items()), "", names, sha256(body).hexdigest()])
    scope = f"{now[:8]}/{region}/dynamodb/aws4_request"
    to_sign = f"{_ALGORITHM}\n{now}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(_signing_key(secret_key, now[:8], region), to_sign.encode(), "sha256").hex()
    headers = signed | {
        "authorization": f"{_ALGORITHM} Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}",
        "content-length": str(len(body)),
        "user-agent": agent,
    }
    return "\r\n".join(["POST / HTTP/1.1", *map(": ".join, headers.items()), "", ""]).encode("latin-1")


@lru_cache(maxsize=4)
def _signing_key(secret_key: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for scope in (day, region, "dynamodb", "aws4_request"):
        key = hmac.digest(key, scope.encode(), "sha256")
    return key


_REGION: Final = re.compile(r"(af|ap|ca|eu|il|me|mx|sa|us|us-gov)-[a-z]+-\d")
"""Regions whose endpoints end in amazonaws.com; held to botocore's list by a test."""

_SPECIAL: Final = frozenset(
    (
        "AWS_ACCOUNT_ID",
        "AWS_CONFIG_FILE",
        "AWS_CREDENTIAL_EXPIRATION",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
        "AWS_PROFILE",
        "AWS_USE_DUALSTACK_ENDPOINT",
        "AWS_USE_FIPS_ENDPOINT",
    )
)
"""Variables that change the endpoint or the credentials in a way of their own."""

_TARGET: Final = "DynamoDB_20120810."
_OK: Final = 200
_REFUSED: Final = 400

_STATUS: Final = re.compile(r"HTTP/1\.1 (\d{3}) ")
_AT_ONCE: Final = 1 << 16
"""Bytes that are received at a time."""

COLLISION: Final = "ConditionalCheckFailedException"
"""The code of DynamoDB's answer where a condition does not hold."""


class CredentialSource(Protocol):
    """botocore's, fixed or renewed when they near their end."""

    def get_frozen_credentials(self) -> Any:
        """The ones to sign with now."""


class FixedKeys(NamedTuple):
    """Credentials of a Lambda function: an execution environment keeps those that it began with."""

    access_key: str
    secret_key: str
    token: str | None

    def get_frozen_credentials(self) -> FixedKeys:
        """These."""
        return self


class DirectLine:
    """Connections to one region's DynamoDB, opened when they are needed, and again when they were lost.

    A thread at a time has a connection: there are as many as calls were made at the same time, and the last one used is
    taken first.
    """

    def __init__(
        self,
        connection: Callable[[], HTTPConnection],
        endpoint: str,
        *,
        region: str,
        credentials: CredentialSource,
        agent: str,
    ) -> None:
        """Args: connection: makes one to the endpoint, not open yet. agent: how we name ourselves."""
        self._new = connection
        self._spare: list[HTTPConnection] = []
        self._host = _host(endpoint)
        self._region = region
        self._credentials = credentials
        self._agent = agent

    def call(self, operation: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Make one call, once.

        Args:
            operation: as the API names it, such as `PutItem`.
            request: as boto3 takes it; bytes stand as bytes.

        Returns:
            The answer as boto3 gives it, without `ResponseMetadata`. None without success, for any other reason:
            boto3, given the same call, retries or raises.

        Raises:
            ClientError: the call's condition does not hold.
        """
        try:
            connection = self._spare.pop()
        except IndexError:
            connection = self._new()
        try:
            status, answer = self._call(connection, msgspec.json.encode(request), operation)
        except (OSError, HTTPException, msgspec.DecodeError):
            connection.close()
            return None
        finally:
            self._spare.append(connection)
        if status == _REFUSED and str(answer.get("__type", "")).endswith(f"#{COLLISION}"):
            error = {"Code": COLLISION, "Message": str(answer.get("message"))}
            raise ClientError({"Error": error, **answer}, operation)
        return answer if status == _OK else None

    def _call(self, connection: HTTPConnection, body: bytes, operation: str) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer."""
        keys = self._credentials.get_frozen_credentials()
        head = signed_head(
            body,
            target=_TARGET + operation,
            host=self._host,
            region=self._region,
            agent=self._agent,
            access_key=keys.access_key,
            secret_key=keys.secret_key,
            token=keys.token,
        )
        if connection.sock is not None and wait_for_read(connection.sock, timeout=0):
            connection.close()  # nothing is due, so this is its end: it lay idle, or the environment was frozen
        if connection.sock is None:
            connection.connect()
        connection.sock.sendall(head + body)
        status, headers, answer = _received(connection.sock)
        if headers.get("connection", "").lower() == "close":
            connection.close()
        if not _whole(answer, headers.get("x-amz-crc32")):
            raise HTTPException("the answer was damaged on its way")
        found: dict[str, Any] = _with_bytes(msgspec.json.decode(answer))
        return status, found


def _received(sock: socket) -> tuple[int, dict[str, str], bytearray]:
    """Status, headers by their names in small letters, and body of the answer that is due.

    Raises:
        HTTPException: it is not of the form in which DynamoDB answers, or is cut short.
    """
    received, end = bytearray(), -1
    while end < 0:
        if not (some := sock.recv(_AT_ONCE)):
            raise HTTPException("the connection ended inside the headers of an answer")
        received += some
        end = received.find(b"\r\n\r\n")
    first, *lines = received[:end].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status, length = _STATUS.match(first), headers.get("content-length", "")
    if status is None or not length.isdecimal():
        raise HTTPException(f"an answer of another form, without a length: {first}")
    body = received[end + 4 :]
    while len(body) < int(length) and (some := sock.recv(_AT_ONCE)):
        body += some
    if len(body) != int(length):
        raise HTTPException(f"{len(body)} bytes of {length}")
    return int(status[1]), headers, body


class DirectClient:
    """A boto3 DynamoDB client. An event's calls are tried on a direct line first; everything else is boto3's."""

    def __init__(self, boto3: Callable[[], Any], line: DirectLine) -> None:
        """Args: boto3: makes its client, once there is a call that is no success at once."""
        self._made = cache(boto3)
        self._line = line

    def query(self, **request: Any) -> Any:
        """As boto3's `query`."""
        return self._first("Query", request)

    def batch_get_item(self, **request: Any) -> Any:
        """As boto3's `batch_get_item`."""
        return self._first("BatchGetItem", request)

    def put_item(self, **request: Any) -> Any:
        """As boto3's `put_item`."""
        return self._first("PutItem", request)

    def update_item(self, **request: Any) -> Any:
        """As boto3's `update_item`."""
        return self._first("UpdateItem", request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made(), name)

    def _first(self, operation: str, request: dict[str, Any]) -> Any:
        answer = self._line.call(operation, request)
        return getattr(self._made(), xform_name(operation))(**request) if answer is None else answer


def direct_client(client: Any, credentials: CredentialSource | None) -> Any:
    """The client that tries an event's calls directly first. Behind a proxy it is boto3's own.

    Args:
        client: boto3's.
        credentials: those of its session; None where it has none, so that boto3 raises.
    """
    endpoint, config = client.meta.endpoint_url, client.meta.config
    if credentials is None or get_environ_proxies(endpoint):
        return client
    line = DirectLine(
        _connections(endpoint, config.read_timeout),
        endpoint,
        region=client.meta.region_name,
        credentials=credentials,
        agent=config.user_agent,
    )
    return DirectClient(lambda: client, line)


def line_of_environment(region: str | None, timeout: float) -> DirectLine | None:
    """The direct line of a Lambda function, from its variables alone, as boto3 would read them.

    Args:
        region: of the tables; by default the function's.
        timeout: seconds.

    Returns:
        None outside Lambda, and where anything is set that boto3 alone should judge.
    """
    variables = os.environ
    region = region or variables.get("AWS_REGION", "")
    access, secret = variables.get("AWS_ACCESS_KEY_ID"), variables.get("AWS_SECRET_ACCESS_KEY")
    if "AWS_LAMBDA_RUNTIME_API" not in variables or not access or not secret or _SPECIAL & variables.keys():
        return None
    own = variables.get("AWS_ENDPOINT_URL_DYNAMODB") or variables.get("AWS_ENDPOINT_URL")
    endpoint = own or (f"https://dynamodb.{region}.amazonaws.com" if _REGION.fullmatch(region) else "")
    if not endpoint or get_environ_proxies(endpoint):
        return None
    credentials = FixedKeys(access, secret, variables.get("AWS_SESSION_TOKEN") or None)
    return DirectLine(
        _connections(endpoint, timeout), endpoint, region=region, credentials=credentials, agent="mirrorless"
    )


def _connections(endpoint: str, timeout: float) -> Callable[[], HTTPConnection]:
    """Makes connections to an endpoint."""
    parts = urlsplit(endpoint)
    host = str(parts.hostname)
    if parts.scheme == "http":
        return partial(HTTPConnection, host, parts.port, timeout=timeout)
    # Whom botocore trusts: what its two variables name, or the bundle that it brings.
    trust = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or get_cert_path(verify=True)
    trusted = ssl.create_default_context(cafile=trust)
    return partial(HTTPSConnection, host, parts.port, timeout=timeout, context=trusted)


def _host(endpoint: str) -> str:
    """As the header of that name has it: without the scheme's own port."""
    parts = urlsplit(endpoint)
    own = {"http": ":80", "https": ":443"}[parts.scheme]
    return parts.netloc.removesuffix(own)


def _whole(answer: bytes | bytearray, checksum: str | None) -> bool:
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
