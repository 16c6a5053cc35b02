"""The network between clients and a server: a TCP proxy that delays, narrows and cuts what passes.

    link = NetworkLink({port_of_clients: port_of_server})    link.open()    link.round_trip_ms = 80    link.cut()

A link may have several ports, one for each broker of a cluster: they share its width and are cut together. One thread
serves it.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Final

from lab.servers.proxied_connection import ConnectionEnd, LinkConditions, LinkDirection

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

    @property
    def is_cut(self) -> bool:
        """Whether nothing passes."""
        return self.refusing or not self.carrying

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
