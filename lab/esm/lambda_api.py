"""The Lambda API of the lab's mappings over HTTP, as the AWS SDK speaks it.

    AWS_ENDPOINT_URL_LAMBDA=http://127.0.0.1:<port>

The operations on event source mappings and on their tags, in the paths, status codes and errors of the API's own model;
and its pace: what calls too often is refused (429). Signatures are not looked at. What the mappings do is
`lab.esm.mappings`; whoever calls that object in this process is not slowed down.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from lab.esm.api_model import violations
from lab.esm.behaviour import LabBehaviour
from lab.esm.mapping_api import (
    FunctionName,
    LambdaApiError,
    ResourceNotFoundError,
    TooManyRequestsError,
    ValidationError,
)
from lab.esm.mappings import EventSourceMappings

MAPPINGS = ["2015-03-31", "event-source-mappings"]
TAGS = ["2017-03-31", "tags"]

PAGE = 100
"""Mappings in one answer at most, whatever MaxItems is."""

_BREATH_S = 0.05

HttpAnswer = tuple[HTTPStatus, dict[str, Any] | None]


class LambdaApi:
    """The door; it listens from `start` until `stop`.

    Args:
        mappings: what is behind it.
        behaviour: its pace.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        mappings: EventSourceMappings,
        *,
        behaviour: LabBehaviour | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mappings = mappings
        self._pace = CallRate((behaviour or LabBehaviour()).control_calls_per_second, clock=clock)
        self._server: _Server | None = None

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:port`; empty while it does not listen."""
        if self._server is None:
            return ""
        host, port, *_ = self._server.server_address
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        """Answer from now on."""
        self._server = _Server(("127.0.0.1", 0), self.answer)
        threading.Thread(target=self._server.serve_forever, args=(_BREATH_S,), name="lambda api", daemon=True).start()

    def stop(self) -> None:
        """Answer no more. Idle connections are left to their clients."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()  # returns when nobody is accepted any more
            server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> HttpAnswer:  # noqa: PLR0911 -- one for each operation
        """Carry out one request.

        Raises:
            LambdaApiError: an answer other than success.
        """
        if not self._pace.allows():
            raise TooManyRequestsError("Rate exceeded")
        address = urlsplit(path)
        names = [unquote(name) for name in address.path.strip("/").split("/", 2)]
        query = parse_qs(address.query)
        match method, names[:2], names[2:]:
            case "POST", place, [] if place == MAPPINGS:
                return HTTPStatus.ACCEPTED, self._mappings.create(**_parameters(body))
            case "GET", place, [] if place == MAPPINGS:
                return HTTPStatus.OK, self._page({name: values[-1] for name, values in query.items()})
            case "GET", place, [uuid] if place == MAPPINGS:
                return HTTPStatus.OK, self._mappings.get(uuid)
            case "PUT", place, [uuid] if place == MAPPINGS:
                return HTTPStatus.ACCEPTED, self._mappings.update(uuid, **_parameters(body))
            case "DELETE", place, [uuid] if place == MAPPINGS:
                return HTTPStatus.ACCEPTED, self._mappings.delete(uuid)
            case "GET", place, [arn] if place == TAGS:
                return HTTPStatus.OK, {"Tags": self._mappings.tags(_uuid(arn))}
            case "POST", place, [arn] if place == TAGS:
                self._mappings.tag(_uuid(arn), _parameters(body).get("Tags", {}))
                return HTTPStatus.NO_CONTENT, None
            case "DELETE", place, [arn] if place == TAGS:
                self._mappings.untag(_uuid(arn), query.get("tagKeys", []))
                return HTTPStatus.NO_CONTENT, None
        raise ResourceNotFoundError(f"The lab's Lambda API has no {method} {address.path}")

    def _page(self, query: dict[str, str]) -> dict[str, Any]:
        """ListEventSourceMappings: one page, in the order of the UUIDs, so that no page shifts under a reader."""
        asked: dict[str, Any] = dict(query)
        if "MaxItems" in asked:
            asked["MaxItems"] = int(asked["MaxItems"]) if asked["MaxItems"].isdecimal() else asked["MaxItems"]
        if broken := violations("ListEventSourceMappings", asked):
            raise ValidationError("; ".join(broken))
        wanted = FunctionName.of(query["FunctionName"]) if "FunctionName" in query else None
        found = [
            mapping
            for mapping in sorted(self._mappings.list(), key=lambda mapping: str(mapping["UUID"]))
            if mapping["UUID"] > query.get("Marker", "") and wanted in (None, FunctionName.of(mapping["FunctionArn"]))
        ]
        size = min(PAGE, asked.get("MaxItems", PAGE))
        page: dict[str, Any] = {"EventSourceMappings": found[:size]}
        if len(found) > size:
            page["NextMarker"] = found[size - 1]["UUID"]
        return page


class CallRate:
    """So many calls a second, saved up for one second at most; from any thread."""

    def __init__(self, calls_per_second: float, *, clock: Callable[[], float]) -> None:
        self._rate = calls_per_second
        self._clock = clock
        self._saved = calls_per_second
        self._at = clock()
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Whether one more call is allowed now; it counts."""
        with self._lock:
            now = self._clock()
            self._saved = min(self._rate, self._saved + (now - self._at) * self._rate)
            self._at = now
            if self._saved < 1:
                return False
            self._saved -= 1
            return True


class _Server(ThreadingHTTPServer):
    """A thread for each connection; none of them outlives the process."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], answer: Callable[[str, str, bytes], HttpAnswer]) -> None:
        self.answer = answer
        super().__init__(address, _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that died in the middle of its call, as a killed function does, is not reported."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    """One client's connection, kept for its next call."""

    server: _Server
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: with Nagle's algorithm the second would wait for the first's acknowledgement.
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        try:
            self._write(*self.server.answer(self.command, self.path, body))
        except LambdaApiError as exc:
            fault = {"Type": "Service" if exc.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "User"}
            self._write(HTTPStatus(exc.status), {**fault, "message": exc.args[0]}, error=exc.code)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 -- the server looks for these names

    def _write(self, status: HTTPStatus, answer: dict[str, Any] | None, *, error: str = "") -> None:
        body = b"" if answer is None else json.dumps(answer, default=_epoch).encode()
        self.send_response(status)
        if error:
            self.send_header("x-amzn-errortype", error)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no line for each call: whoever watches the lab has its mappings' logs."""


def _parameters(body: bytes) -> dict[str, Any]:
    try:
        parameters = json.loads(body)
    except ValueError as exc:
        raise ValidationError(f"Could not parse request body into json: {exc}") from exc
    if not isinstance(parameters, dict):
        raise ValidationError("Could not parse request body into json: it is no object")
    return parameters


def _uuid(arn: str) -> str:
    return arn.rpartition(":")[2]


def _epoch(value: object) -> float:
    """Timestamps in this API's JSON are seconds since the epoch."""
    if isinstance(value, dt.datetime):
        return value.timestamp()
    raise TypeError(f"{value!r} has no place in an answer of the Lambda API")
