"""One connection through a `NetworkLink`: two ends, each of which passes on what it receives when that is due.

All of it runs in the link's thread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, Literal

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
