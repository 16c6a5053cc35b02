"""The link between clients and a server, before a real TCP server that echoes."""

from __future__ import annotations

import errno
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from lab.servers.process import free_port
from lab.servers.proxy import NetworkLink
from tests.support.waiting import eventually

WAIT_S = 20.0
"""For what takes milliseconds on an idle machine."""


class Echo(socketserver.BaseRequestHandler):
    """One connection of the server."""

    def handle(self) -> None:
        """Send back what comes."""
        self.request.settimeout(WAIT_S)
        try:
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)
        except ConnectionError:
            return  # cut, as the test wants


class EchoServer(socketserver.ThreadingTCPServer):
    """A thread for each connection."""

    allow_reuse_address = True
    request_queue_size = 50


@pytest.fixture
def server() -> Iterator[int]:
    """The port of the server."""
    with EchoServer(("127.0.0.1", 0), Echo) as echo:
        thread = threading.Thread(target=echo.serve_forever, args=(0.01,))
        thread.start()
        yield echo.server_address[1]
        echo.shutdown()
        thread.join(WAIT_S)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def other_port() -> int:
    return free_port()


@pytest.fixture
def link(server: int, port: int, other_port: int) -> Iterator[NetworkLink]:
    opened = NetworkLink({port: server, other_port: server})
    opened.open()
    yield opened
    opened.close()


def dial(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def echoed(connection: socket.socket, data: bytes = b"ping") -> float:
    """The seconds that an echo took."""
    began = time.monotonic()
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    got = bytearray()
    while len(got) < len(data):
        piece = connection.recv(1 << 16)
        assert piece, f"the connection ended after {len(got)} bytes"
        got += piece
    sender.join(WAIT_S)
    assert got == data
    return time.monotonic() - began


def test_bytes_arrive_whole_and_in_order_whatever_the_jitter_is(link: NetworkLink, port: int) -> None:
    link.round_trip_ms, link.jitter_ms = 4, 10
    data = os.urandom(3_000_000)
    with dial(port) as connection:
        echoed(connection, data)


def test_a_round_trip_takes_what_is_set_and_a_new_connection_one_more(link: NetworkLink, port: int) -> None:
    with dial(port) as connection:
        echoed(connection)
        link.round_trip_ms = 200
        first = echoed(connection)
    with dial(port) as connection:
        connected = echoed(connection)
        link.round_trip_ms = 0
        near = min(echoed(connection) for _ in range(5))

    assert first >= 0.2
    assert connected >= 0.4
    assert near < 0.2


def test_jitter_differs_from_byte_to_byte(link: NetworkLink, port: int) -> None:
    link.jitter_ms = 60
    with dial(port) as connection:
        took = [echoed(connection) for _ in range(20)]

    assert min(took) < 0.120, "less than all of it each way"
    assert sum(took) / len(took) > 0.030, "more than none"


def test_connections_share_the_width_of_a_link(link: NetworkLink, port: int) -> None:
    link.bytes_per_second = 400_000
    began = time.monotonic()
    with dial(port) as one, dial(port) as other:
        threads = [threading.Thread(target=echoed, args=(each, bytes(100_000))) for each in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)

    assert time.monotonic() - began >= 0.5


def test_a_narrow_link_holds_its_sender_back(link: NetworkLink, port: int) -> None:
    """What a sender has got rid of is under way: megabytes in the proxy would delay all other connections."""
    link.bytes_per_second = 100_000
    with dial(port) as connection:
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(bytes(64_000_000))


def test_a_cut_resets_connections_of_all_ports_and_refuses_new_ones(
    link: NetworkLink, port: int, other_port: int
) -> None:
    with dial(port) as one, dial(other_port) as other:
        echoed(one)
        echoed(other)
        assert (link.connections, link.open_connections) == (2, 2)

        link.cut()

        for connection in (one, other):
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        dial(port)
    assert (link.connections, link.open_connections) == (2, 0)

    link.restore()

    with dial(port) as connection:
        echoed(connection)


def test_what_is_sent_in_a_silent_cut_arrives_after_it(link: NetworkLink, port: int) -> None:
    with dial(port) as old:
        echoed(old)
        link.cut(silently=True)
        with dial(port) as new:
            for connection in (old, new):
                connection.sendall(b"ping")
                connection.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    connection.recv(4)
                connection.settimeout(WAIT_S)

            link.restore()

            assert [connection.recv(4) for connection in (old, new)] == [b"ping", b"ping"]


def test_the_end_of_a_stream_passes_while_the_other_direction_stays_open(link: NetworkLink, port: int) -> None:
    link.round_trip_ms = 20
    with dial(port) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        got = b""
        while piece := connection.recv(64):
            got += piece

    assert got == b"last words"
    eventually(lambda: link.open_connections == 0, "the connection is closed on both sides")


def test_a_client_that_has_ended_and_is_reset_then_leaves_nothing_open(
    link: NetworkLink, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its reset is not seen, because nothing more is read of it: the end of the server's stream meets it."""
    link.round_trip_ms = 100
    with dial(port) as connection:
        echoed(connection)
        connection.shutdown(socket.SHUT_WR)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    eventually(lambda: link.open_connections == 0, "closed by the end of the server's stream")
    assert caplog.records == []


def test_a_connection_to_a_server_that_is_not_there_is_reset(port: int) -> None:
    link = NetworkLink({port: free_port()})
    link.open()
    try:
        with pytest.raises(ConnectionResetError):
            dial(port).recv(1)
    finally:
        link.close()


def test_closing_leaves_no_thread_and_no_port_behind(server: int, port: int) -> None:
    link = NetworkLink({port: server})
    link.open()
    link.round_trip_ms = 10_000
    with dial(port) as connection:
        connection.sendall(b"on its way for a long time")

        link.close()

        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert not any(thread.name.startswith("link ") for thread in threading.enumerate())
    link.round_trip_ms = 0
    link.open()
    with dial(port) as connection:
        echoed(connection)
    link.close()
    link.close()  # twice is no error
    with socket.socket() as anyone:
        anyone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        anyone.bind(("127.0.0.1", port))


def test_a_port_that_is_taken_is_an_error_and_leaves_no_thread(server: int) -> None:
    with pytest.raises(OSError, match="already in use") as failed:
        NetworkLink({server: server}).open()

    assert failed.value.errno == errno.EADDRINUSE
    assert not any(thread.name.startswith("link ") for thread in threading.enumerate())
