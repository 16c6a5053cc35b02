"""The Lambda Runtime API over HTTP, on loopback.

One server per execution environment, as in Lambda. It speaks HTTP/1.1 to the runtime interface client and nothing else;
what an answer means, and what happens to a process that gives none, is `lab.functions.environment`'s business.
"""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping

MAX_EVENT = 6 * 1024 * 1024
"""Bytes of a synchronous invocation's event."""

MAX_RESPONSE = 6_291_556
"""Bytes of a response: the number that Lambda's own refusal names."""

_RUNTIME = "/2018-06-01/runtime/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One invocation as the runtime gets it.

    Attributes:
        request_id: Lambda's id of the invocation.
        body: UTF-8 JSON, at most `MAX_EVENT` bytes.
        deadline_ms: when the invocation times out, in milliseconds since 1970.
        arn: the invoked function's.
    """

    request_id: str
    body: bytes
    deadline_ms: int
    arn: str


class Runtime(Protocol):
    """What the server needs of an execution environment. Called from the server's threads."""

    def next_event(self) -> Event | None:
        """Block until there is an event; None when there will be no other."""
        ...

    def answered(self, request_id: str, body: bytes) -> bool:
        """The handler returned; False when this is not the invocation that the environment has."""
        ...

    def failed(self, request_id: str, body: bytes) -> bool:
        """The handler raised, or its answer was too large; False as above."""
        ...

    def init_failed(self, body: bytes) -> None:
        """The handler's module could not be imported."""
        ...


class RuntimeApi:
    """The server for one environment; it listens from construction until `close()`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address = "{}:{}".format(*self._listener.getsockname())
        self._connections: set[socket.socket] = set()
        self._closed = False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name=f"runtime-api-{self.address}", daemon=True).start()

    @property
    def address(self) -> str:
        """`127.0.0.1:port`, as AWS_LAMBDA_RUNTIME_API wants it."""
        return self._address

    def close(self) -> None:
        """Stop listening and drop every connection."""
        with self._lock:
            self._closed = True
            for connection in (self._listener, *self._connections):
                _hang_up(connection)

    def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    return  # close() hung up
                # Nagle's algorithm with delayed acknowledgements would add 40 ms to an answer in two writes.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    if self._closed:
                        connection.close()
                        return
                    self._connections.add(connection)
                threading.Thread(target=self._serve, args=(connection,), name="runtime-api", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as stream:
                while request := _read(stream, connection):
                    if not self._answer(connection, *request):
                        return
        except OSError:
            return  # the process died in the middle of a call, or close() hung up: the environment handles it
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket, method: str, path: str, body: bytes) -> bool:
        """Answer one call; False when the connection has no further use."""
        match method, path.removeprefix(_RUNTIME).split("/"):
            case "GET", ["invocation", "next"]:
                event = self._runtime.next_event()
                if event is None:
                    return False
                _write(connection, HTTPStatus.OK, event.body, _headers(event))
            case "POST", ["invocation", request_id, "response"] if len(body) > MAX_RESPONSE:
                said = f"Exceeded maximum allowed payload size ({MAX_RESPONSE} bytes)."
                self._runtime.failed(request_id, _error("Function.ResponseSizeTooLarge", f"Response payload: {said}"))
                _write(connection, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _error("RequestEntityTooLarge", said))
            case "POST", ["invocation", request_id, "response"]:
                _acknowledge(connection, known=self._runtime.answered(request_id, body))
            case "POST", ["invocation", request_id, "error"]:
                _acknowledge(connection, known=self._runtime.failed(request_id, body))
            case "POST", ["init", "error"]:
                self._runtime.init_failed(body)
                _acknowledge(connection, known=True)
            case _:
                _write(
                    connection, HTTPStatus.NOT_FOUND, _error("NotFound", f"{method} {path} is not in the Runtime API")
                )
        return True


def _headers(event: Event) -> dict[str, str]:
    root = f"{int(event.deadline_ms / 1000):08x}-{event.request_id.replace('-', '')[:24]}"
    return {
        "Lambda-Runtime-Aws-Request-Id": event.request_id,
        "Lambda-Runtime-Deadline-Ms": str(event.deadline_ms),
        "Lambda-Runtime-Invoked-Function-Arn": event.arn,
        "Lambda-Runtime-Trace-Id": f"Root=1-{root};Parent=0000000000000001;Sampled=0",
    }


def _read(stream: io.BufferedReader, connection: socket.socket) -> tuple[str, str, bytes] | None:
    """One request as (method, path, body); None when the other side hung up."""
    request_line = stream.readline().decode("latin-1").split()
    if not request_line:
        return None
    headers: dict[str, str] = {}
    while line := stream.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    length = int(headers.get("content-length", "0"))
    body = stream.read(length)
    return (request_line[0], request_line[1], body) if len(body) == length else None


def _write(
    connection: socket.socket, status: HTTPStatus, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    connection.sendall("\r\n".join(lines).encode("latin-1") + body)


def _acknowledge(connection: socket.socket, *, known: bool) -> None:
    """202, the only status that lets the runtime interface client live; 400 for an id it was not given."""
    if known:
        _write(connection, HTTPStatus.ACCEPTED, b'{"status":"OK"}')
    else:
        _write(connection, HTTPStatus.BAD_REQUEST, _error("InvalidRequestID", "Invalid request ID"))


def _error(kind: str, text: str) -> bytes:
    return json.dumps({"errorMessage": text, "errorType": kind}).encode()


def _hang_up(connection: socket.socket) -> None:
    try:
        # Unblocks the thread that reads from it; closing alone would not.
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side was first
