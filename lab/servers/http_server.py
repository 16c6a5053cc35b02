"""An HTTP server on loopback with a thread for each connection, which ends with its connections."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOOPBACK = "127.0.0.1"
_BREATH_S = 0.05


class HttpServer(ThreadingHTTPServer):
    """It answers from its making until `close`.

    Attributes:
        closing: set when it ends; what waits for something else than its client then ends, too.
    """

    request_queue_size = 100

    def __init__(self, connection: type[HttpConnection], port: int = 0, *, name: str) -> None:
        """Args: connection: what answers. port: 0 for a free one. name: of its threads."""
        self.closing = threading.Event()
        self._open: set[Any] = set()
        self._lock = threading.Lock()
        super().__init__((LOOPBACK, port), connection)
        self._thread = threading.Thread(target=self.serve_forever, args=(_BREATH_S,), name=name, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """`127.0.0.1:port`."""
        return f"{LOOPBACK}:{self.server_address[1]}"

    def close(self) -> None:
        """Accept nobody any more, and end every connection."""
        self.shutdown()
        self._thread.join()
        with self._lock:
            self.closing.set()
            for connection in self._open:
                _hang_up(connection)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note the connection, and answer in a thread of its own."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that ends."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that died in the middle of its call, as a killed function does, is not reported."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class HttpConnection(BaseHTTPRequestHandler):
    """One client's connection, kept for its next call."""

    protocol_version = "HTTP/1.1"
    # Nagle's algorithm with delayed acknowledgements would add 40 ms to an answer in two writes.
    disable_nagle_algorithm = True
    wbufsize = -1

    def body(self) -> bytes:
        """What the client sent; to be called once for each call."""
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON, or with what the headers say."""
        self.send_response_only(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_expect_100(self) -> bool:
        """Have a client that asks go on with its body."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def log_message(self, *_: object) -> None:
        """Write no line for each call: whoever watches the lab has other logs."""


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # its client has gone
        connection.shutdown(socket.SHUT_RDWR)
