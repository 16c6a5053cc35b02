"""The network between clients and a server: a TCP proxy that delays, narrows and cuts what passes.

    link = NetworkLink({port_of_clients: port_of_server})    link.open()    link.round_trip_ms = 80    link.cut()

A link may have several ports, one for each broker of a cluster: they share its width and are cut together. One thread
serves it.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Final, Literal

WINDOW: Final = 4 * 1024 * 1024
"""Bytes of one direction of a connection under way at most, as TCP's windows limit them."""
QUEUE_SECONDS: Final = 0.25
"""The same limit on a narrow link, in time: what is beyond it waits at the sender."""
PIECE: Final = 16 * 1024
"""Connections share a narrow link by pieces of this size."""

StreamClose = Literal["end", "reset"]
"""How a stream ended."""

_ABORTIVE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER by which a close is a reset."""


class LinkConditions:
    """The properties of a network, and the connections that pass through it.

    Attributes:
        round_trip_ms: half of it is added each way; a new connection costs one more, as TCP's handshake does.
        jitter_ms: more delay each way, drawn between zero and this; the order of a connection's bytes is kept.
        bytes_per_second: of each direction, for all connections together; None: unlimited.
        carrying: False while what is due stays under way.
        refusing: whether connections are refused.
        ends: of the open connections.
    """

    def __init__(self, random: Random) -> None:
        """Args: random: of the jitter."""
        self.round_trip_ms = 0.0
        self.jitter_ms = 0.0
        self.bytes_per_second: float | None = None
        self.carrying = True
        self.refusing = False
        self.ends: set[ConnectionEnd] = set()
        self._random = random

    def delay(self) -> float:
        """Seconds that a byte takes from end to end, drawn anew."""
        return (self.round_trip_ms / 2 + self._random.uniform(0, self.jitter_ms)) / 1000

    def limit(self) -> float:
        """Bytes of one direction of a connection that may be under way now."""
        return WINDOW if self.bytes_per_second is None else max(PIECE, self.bytes_per_second * QUEUE_SECONDS)


class LinkDirection:
    """One direction of a link, whose width all connections share."""

    def __init__(self, conditions: LinkConditions) -> None:
        self._conditions = conditions
        self._free_at = 0.0

    def due(self, now: float, size: int) -> float:
        """When the last byte of a piece arrives that is sent now."""
        sent = max(now, self._free_at)
        if rate := self._conditions.bytes_per_second:
            sent += size / rate
            self._free_at = sent
        return sent + self._conditions.delay()


class ConnectionEnd(asyncio.Protocol):
    """One end of a connection: what it receives leaves by its peer when it is due."""

    def __init__(
        self,
        conditions: LinkConditions,
        direction: LinkDirection,
        *,
        on_accepted: Callable[[ConnectionEnd], None] | None = None,
    ) -> None:
        """Args: on_accepted: called with a client's end that is to get a peer; None for a server's end."""
        self.peer: ConnectionEnd | None = None
        self.transport: asyncio.Transport | None = None
        self.full = False
        """Whether the program at this end takes no more bytes just now."""
        self.passed_end = False
        """Whether the end of the stream was sent on."""
        self.of_client = on_accepted is not None
        self._on_accepted = on_accepted
        self._conditions = conditions
        self._direction = direction
        self._pending: deque[tuple[float, bytes | StreamClose]] = deque()
        """When due, and the bytes, or how the stream ended; each leaves behind the one before it."""
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        """Whether the end of the stream was received."""

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The end is open."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"{transport!r} is no stream")
        self.transport = transport
        self._conditions.ends.add(self)
        if self._conditions.refusing:
            self.reset()  # accepted while the link was being cut
        elif self._on_accepted is not None:
            transport.pause_reading()
            self._on_accepted(self)

    def data_received(self, data: bytes) -> None:
        """Bytes, at most 256 KiB."""
        now = asyncio.get_running_loop().time()
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._queue(self._direction.due(now, len(piece)), piece)
        self.look()

    def eof_received(self) -> bool:
        """No more bytes will come; the other direction stays open."""
        self._close("end")
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's
        """The end is closed."""
        self._conditions.ends.discard(self)
        self._close("reset")  # which a peer that is closed does not get

    def pause_writing(self) -> None:
        """Too many bytes wait for the program at this end."""
        self.full = True
        if self.peer is not None:
            self.peer.look()

    def resume_writing(self) -> None:
        """It has read most of them."""
        self.full = False
        if self.peer is not None:
            self.peer.look()

    # What the link calls

    def reset(self) -> None:
        """Close so that the program at this end sees a reset."""
        if self.transport is not None and not self.transport.is_closing():
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORTIVE)
            self.transport.abort()

    def look(self) -> None:
        """Pass on what is due, come back when more is, and read on or not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._pending and self._may_pass() and self._pending[0][0] <= loop.time():
            self._pass_on(self._pending.popleft()[1])
        if self._pending and self._may_pass():
            self._timer = loop.call_at(self._pending[0][0], self.look)
        if self.transport is None or self._ended:
            return
        if self._may_pass() and self._bytes < self._conditions.limit():
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _may_pass(self) -> bool:
        return self._conditions.carrying and self.peer is not None and not self.peer.full

    def _close(self, how: StreamClose) -> None:
        self._ended = True
        self._queue(self._direction.due(asyncio.get_running_loop().time(), 0), how)
        self.look()

    def _queue(self, due: float, data: bytes | StreamClose) -> None:
        self._pending.append((due, data))
        self._bytes += len(data) if isinstance(data, bytes) else 0

    def _pass_on(self, data: bytes | StreamClose) -> None:
        peer = self.peer
        if peer is None or peer.transport is None or peer.transport.is_closing():
            return
        if isinstance(data, bytes):
            self._bytes -= len(data)
            peer.transport.write(data)
        elif data == "reset":
            peer.reset()
        else:
            self.passed_end = True
            try:
                peer.transport.write_eof()
            except OSError:
                peer.reset()  # the program there has reset it, unseen since its own stream ended
            if peer.passed_end and self.transport is not None:
                self.transport.close()
                peer.transport.close()


LOOPBACK: Final = "127.0.0.1"
BACKLOG: Final = 100
"""Connections that wait to be accepted."""
ORDER_SECONDS: Final = 30.0
"""For the link's thread to carry out an order: milliseconds, on a machine that is not overloaded."""


class NetworkLink(LinkConditions):
    """A TCP proxy on loopback with the properties of a network, which any thread may set at any time.

    What is under way keeps the delay that it was given.

    Attributes:
        connections: accepted so far.
    """

    def __init__(self, routes: Mapping[int, int], *, random: Random | None = None) -> None:
        """Args: routes: the server's ports by those that clients call. random: of the jitter."""
        super().__init__(random or Random())  # noqa: S311 -- a delay, not a secret
        self.connections = 0
        self._routes = dict(routes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._restored = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._connecting: dict[ConnectionEnd, asyncio.Task[None]] = {}

    @property
    def open_connections(self) -> int:
        """Connections of clients that are open now."""
        return sum(end.of_client for end in self.ends.copy())

    def open(self) -> None:
        """Begin to accept connections; nothing happens to a link that is open.

        Raises:
            OSError: a port is taken.
        """
        if self._thread is not None:
            return
        self._loop, self._restored = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"link {[*self._routes]}", daemon=True)
        self._thread.start()
        try:
            self._order(self._listen())
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Break every connection and accept none; the link may be opened again. Its thread ends."""
        if self._thread is None or self._loop is None:
            return
        self._order(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = self._loop = None

    def cut(self, *, silently: bool = False) -> None:
        """Let nothing pass until `restore`.

        Args:
            silently: connections stay, old and new, and what is sent arrives after `restore`: a network that loses
                packets. Otherwise existing connections are reset and new ones refused: a host that is unreachable.
        """
        self._order(self._cut(silently=silently))

    def restore(self) -> None:
        """End a cut."""
        self._order(self._restore())

    def _order(self, order: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:
            order.close()
            raise RuntimeError(f"the link at the ports {[*self._routes]} is not open")
        asyncio.run_coroutine_threadsafe(order, self._loop).result(ORDER_SECONDS)

    # In the link's thread

    async def _listen(self) -> None:
        to_server, to_client = LinkDirection(self), LinkDirection(self)
        for front, behind in self._routes.items():
            listener = socket.create_server((LOOPBACK, front), backlog=BACKLOG)
            listener.settimeout(0)
            self._listeners.append(listener)
            connect = functools.partial(self._keep_connecting, behind, to_client)
            end = functools.partial(ConnectionEnd, self, to_server, on_accepted=connect)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener, end)

    def _accept(self, listener: socket.socket, end: Callable[[], ConnectionEnd]) -> None:
        # asyncio's own server loses a connection that it accepts while it is being closed (Python 3.11).
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return  # the client has gone
        connection.settimeout(0)
        loop = asyncio.get_running_loop()
        accepting = loop.create_task(_attach(connection, end))
        self._accepting.add(accepting)  # the loop keeps no task
        accepting.add_done_callback(self._accepting.discard)

    def _keep_connecting(self, port: int, to_client: LinkDirection, end: ConnectionEnd) -> None:
        self.connections += 1
        connecting = asyncio.get_running_loop().create_task(self._connect(end, port, to_client))
        self._connecting[end] = connecting
        connecting.add_done_callback(lambda _: self._connecting.pop(end))

    async def _connect(self, client: ConnectionEnd, port: int, to_client: LinkDirection) -> None:
        await asyncio.sleep(self.delay() + self.delay())  # TCP's handshake
        while not self.carrying:
            await self._restored.wait()
        server = ConnectionEnd(self, to_client)
        server.peer, client.peer = client, server
        try:
            await asyncio.get_running_loop().create_connection(lambda: server, LOOPBACK, port)
        except OSError:
            client.reset()  # the server is not there
            return
        for end in (client, server):
            end.look()

    async def _cut(self, *, silently: bool) -> None:
        if silently:
            self.carrying = False
            self._restored.clear()
        else:
            self.refusing = True
            self._reset_all()
        self._look()

    def _reset_all(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for connecting in self._connecting.values():
            connecting.cancel()
        for end in self.ends.copy():
            end.reset()

    async def _restore(self) -> None:
        if self.refusing:
            await self._listen()
        self.refusing, self.carrying = False, True
        self._restored.set()
        self._look()

    def _look(self) -> None:
        for end in self.ends.copy():
            end.look()
            if end.peer is not None:
                end.peer.look()  # bytes of an end that is gone are still under way to its peer

    async def _end(self) -> None:
        self.refusing = True
        self._reset_all()
        while self.ends or len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 -- the loop carries the resets out meanwhile
            await asyncio.sleep(0)
        self.refusing, self.carrying = False, True


async def _attach(connection: socket.socket, end: Callable[[], ConnectionEnd]) -> None:
    await asyncio.get_running_loop().connect_accepted_socket(end, connection)
