"""The Lambda API of the lab's mappings over HTTP, as the AWS SDK speaks it.

    AWS_ENDPOINT_URL_LAMBDA=http://127.0.0.1:<port>

The operations on event source mappings and on their tags, in the paths, status codes and errors of the API's own model;
and its pace: what calls too often is refused (429). Signatures are not looked at. What the mappings do is
`lab.esm.mappings`; whoever calls that object in this process is not slowed down.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
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
from lab.servers.http_server import HttpConnection, HttpServer

MAPPINGS = ["2015-03-31", "event-source-mappings"]
TAGS = ["2017-03-31", "tags"]

PAGE = 100
"""Mappings in one answer at most, whatever MaxItems is."""

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
        return "" if self._server is None else f"http://{self._server.address}"

    def start(self) -> None:
        """Answer from now on."""
        self._server = _Server(self.answer)

    def stop(self) -> None:
        """Answer no more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

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


class _Server(HttpServer):
    """What answers, beside the connections."""

    def __init__(self, answer: Callable[[str, str, bytes], HttpAnswer]) -> None:
        self.call = answer
        super().__init__(_Connection, name="lambda api")


class _Connection(HttpConnection):
    """One client's calls."""

    server: _Server

    def _serve(self) -> None:
        try:
            status, found = self.server.call(self.command, self.path, self.body())
            self.answer(status, b"" if found is None else json.dumps(found, default=_epoch).encode())
        except LambdaApiError as exc:
            fault = "Service" if exc.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "User"
            body = json.dumps({"Type": fault, "message": exc.args[0]}).encode()
            self.answer(exc.status, body, {"x-amzn-errortype": exc.code})

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 -- the server looks for these names


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
