"""Events that are fetched directly are those that Lambda's own runtime client fetches, in each form of answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.functions.environment import runtime_folder

FETCH = """
from hashlib import sha256
from awslambdaric import lambda_runtime_client as client
from mirrorless.adapters.aws.runtime import fetch_events_directly

native = client.runtime_client
assert fetch_events_directly()
assert client.runtime_client is not native
assert client.runtime_client.post_error is native.post_error
found = [fetch() for fetch in (native.next, client.runtime_client.next, client.runtime_client.next)]
print([(sha256(body).hexdigest(), sorted(headers.items(), key=str)) for body, headers in found])
"""

EVENT = os.urandom(3_000_000)
HEADERS = (
    "Content-Type: application/json",
    "Lambda-Runtime-Aws-Request-Id: 8476a536-e9f4-11e8-9739-2dfe598c3fcd",
    "Lambda-Runtime-Deadline-Ms: 1763686800123",
    "Lambda-Runtime-Invoked-Function-Arn: arn:aws:lambda:us-east-1:1:function:forward",
    "Lambda-Runtime-Trace-Id: Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=1",
)


def answer(*headers: str, status: str = "200 OK", body: bytes = EVENT) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def chunked() -> bytes:
    lines = ["HTTP/1.1 200 OK", *HEADERS, "Transfer-Encoding: chunked", "", ""]
    chunks = [EVENT[start : start + 32_768] for start in range(0, len(EVENT), 32_768)]
    return "\r\n".join(lines).encode() + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in [*chunks, b""])


@contextmanager
def runtime_api(answers: Sequence[bytes]) -> Iterator[str]:
    """A server that gives these answers, one per request; an empty one is a closed connection."""
    pending = list(answers)

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while stream.readline():
                while stream.readline().strip():
                    pass
                if not (said := pending.pop(0)):
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(said)

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield "{}:{}".format(*listener.getsockname())
        assert not pending


def fetched(answers: Sequence[bytes]) -> list[object]:
    """What the native client fetched, and then what we did, twice."""
    with runtime_api(answers) as address:
        path = os.pathsep.join((str(runtime_folder()), *(each for each in sys.path if each)))
        variables = {**os.environ, "PYTHONPATH": path, "AWS_LAMBDA_RUNTIME_API": address}
        done = subprocess.run(
            [sys.executable, "-c", FETCH], env=variables, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    found: list[object] = eval(done.stdout)  # noqa: S307 -- our own program's
    return found


@pytest.mark.parametrize(
    "given",
    [
        lambda: answer(*HEADERS),
        lambda: answer(*HEADERS, "Lambda-Runtime-Client-Context: {}", "Lambda-Runtime-Cognito-Identity: {}"),
        lambda: answer(*HEADERS[:3], body=b"{}"),
        lambda: answer(*HEADERS[:2], body=b""),
        chunked,
    ],
    ids=["event", "every-header", "few-headers", "no-deadline", "chunked"],
)
def test_an_event_is_the_same_as_the_runtimes_own(given: Callable[[], bytes]) -> None:
    own, once, again = fetched([given()] * 3)

    assert once == own
    assert again == own


@pytest.mark.parametrize("failure", [b"", answer(status="500 Internal Server Error", body=b"{}")], ids=["cut", "500"])
def test_where_fetching_fails_the_runtimes_own_client_fetches(failure: bytes) -> None:
    own, once, again = fetched([answer(*HEADERS), failure, answer(*HEADERS), answer(*HEADERS)])

    assert once == own
    assert again == own


def test_without_a_runtime_client_nothing_is_replaced() -> None:
    program = "from mirrorless.adapters.aws.runtime import fetch_events_directly as f; raise SystemExit(f())"
    path = Path(__file__).parents[2] / "shared"

    assert subprocess.run([sys.executable, "-c", program], cwd=path, timeout=60, check=False).returncode == 0
