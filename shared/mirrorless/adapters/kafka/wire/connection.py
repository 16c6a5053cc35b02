"""One connection to a broker: requests leave in order, and their answers come in the same order.

A socket of our own that never blocks once it is open. Large parts of a request are handed to the kernel where they lie
(`sendmsg`), and a large answer is received into the buffer that its batches are views of.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from typing import Any, Final

from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.authentication import Credentials, TurnedAwayError

Buffer = bytes | bytearray | memoryview

CONNECT_SECONDS: Final = 10.0
"""For TCP, TLS and SASL together."""
SCRATCH: Final = 16 * 1024
"""An answer that is smaller than this comes in one call."""
AT_ONCE: Final = 256
"""Buffers in one call, which may be 1,024 at most."""
LARGEST_ANSWER: Final = 256 * 1024 * 1024
"""What is announced as larger is no answer of a broker."""

_REQUEST: Final = Struct(">ihhi")
_SIZE: Final = Struct(">i")
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = (17, 1), (36, 1)
_FLEXIBLE: Final = frozenset({(1, 12), (3, 10), (61, 0), (66, 0)})
"""Requests whose header ends with tagged fields, by number and version."""

ApiKey = tuple[int, int]
"""Number and version of a request."""


@dataclass(slots=True)
class Pending:
    """A request under way."""

    api: ApiKey
    correlation: int
    purpose: Any
    """The sender's own."""
    until: float
    """When waiting for the answer ends, by the monotonic clock."""
    least: int
    """Bytes of the answer on the wire, at least."""


@dataclass(slots=True)
class _Incoming:
    """What has come of an answer."""

    buffer: bytearray
    have: int = 0
    view: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.view = memoryview(self.buffer)


class BrokerConnection:
    """See the module. Every method raises OSError once the connection is lost; then it must be closed.

    Attributes:
        node: the broker's id; -1 for a bootstrap address.
        pending: requests under way, oldest first.
        muted_until: by the monotonic clock; a quota holds the next request back until then.
        renew_at: by the monotonic clock: from then on a new connection should take its place.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        node: int,
        client_id: str,
        tls: ssl.SSLContext | None,
        credentials: Credentials,
        seconds: float,
    ) -> None:
        """Connect and authenticate; takes so many seconds at most."""
        self.node = node
        self.where = f"{address[0]}:{address[1]}"
        self.pending: deque[Pending] = deque()
        self.muted_until = 0.0
        self.renew_at = float("inf")
        self._client_id = _SIZE.pack(len(client_id.encode()))[2:] + client_id.encode()
        self._outgoing: deque[Buffer] = deque()
        self._left = 0
        self._correlation = 0
        self._scratch = memoryview(bytearray(SCRATCH))
        self._rest = b""
        self._incoming: _Incoming | None = None
        self._awaited = 1
        until = time.monotonic() + min(seconds, CONNECT_SECONDS)
        self._socket: socket.socket = socket.create_connection(address, timeout=max(0.001, until - time.monotonic()))
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if tls is not None:
                try:
                    self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
                except ssl.SSLError as exc:
                    raise TurnedAwayError(f"TLS failed: {exc}") from exc
            self._encrypted = tls is not None
            self._socket.setblocking(False)  # noqa: FBT003 -- the standard library's signature
            if credentials.mechanism:
                self._authenticate(credentials, until)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Drop the connection, and what was under way."""
        self._socket.close()
        self._outgoing.clear()

    @property
    def wants_write(self) -> bool:
        """Whether parts of a request are waiting for the kernel."""
        return bool(self._outgoing)

    def await_answers(self, count: int) -> None:
        """Be ready once so many answers are there, or any byte of one that has begun: one look at the kernel for all.

        A caller waits for a moment only before it makes do with less: what the kernel holds back is not seen at all.
        """
        if self._encrypted:
            return  # what TLS adds is not known
        least = 1
        if self._incoming is None and count > 1:
            least = max(1, sum(each.least for each in islice(self.pending, count)) - len(self._rest))
        if least != self._awaited:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._awaited = least

    def send(self, api: ApiKey, parts: Sequence[Buffer], *, purpose: Any, until: float, least: int = 0) -> None:
        """Make a request the last one to leave. Nothing leaves before `flush`: several then leave in one call.

        Args:
            api: number and version.
            parts: of its body.
            purpose: the sender's own.
            until: when waiting for the answer ends.
            least: bytes of the answer, at least.
        """
        self._correlation += 1
        ending = b"\0" if api in _FLEXIBLE else b""
        of_parts = sum(map(len, parts))
        size = _REQUEST.size - 4 + len(self._client_id) + len(ending) + of_parts
        head = _REQUEST.pack(size, *api, self._correlation) + self._client_id + ending
        if self._encrypted:  # a record of TLS for each part would be more than a copy
            self._outgoing.append(b"".join((head, *parts)))
        else:
            self._outgoing.append(head + bytes(parts[0]) if parts else head)
            self._outgoing.extend(parts[1:])
        self._left += len(head) + of_parts
        self.pending.append(Pending(api, self._correlation, purpose, until, least))

    def flush(self) -> None:
        """Hand over what the kernel takes."""
        outgoing = self._outgoing
        try:
            while outgoing:
                if self._encrypted:
                    sent = self._socket.send(outgoing[0])
                else:
                    sent = self._socket.sendmsg(outgoing if len(outgoing) <= AT_ONCE else [*islice(outgoing, AT_ONCE)])
                self._left -= sent
                if not self._left:
                    outgoing.clear()
                    return
                while sent >= len(outgoing[0]):
                    sent -= len(outgoing.popleft())
                if sent:
                    outgoing[0] = memoryview(outgoing[0])[sent:]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return

    def receive(self) -> list[tuple[Pending, memoryview]]:
        """The answers that are complete: each without size, number and the header's tagged fields."""
        answers: list[tuple[Pending, memoryview]] = []
        while True:
            incoming = self._incoming
            try:
                if incoming is None:
                    count = self._socket.recv_into(self._scratch)
                else:
                    count = self._socket.recv_into(incoming.view[incoming.have :])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return answers
            if not count:
                raise ConnectionError(f"{self.where} closed the connection")
            if incoming is None:
                self._rest += self._scratch[:count]
                self._cut(answers)
            else:
                incoming.have += count
                if incoming.have == len(incoming.buffer):
                    self._incoming = None
                    answers.append(self._answered(incoming.view))
            if answers and self._incoming is None and not self._rest:
                return answers  # before the kernel is asked in vain; what it has shows at the next look

    def _cut(self, answers: list[tuple[Pending, memoryview]]) -> None:
        """Cut answers from what came, and begin to gather one that is not complete."""
        data, at = self._rest, 0
        while len(data) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, at)
            if not 4 <= size <= LARGEST_ANSWER:  # noqa: PLR2004 -- its number at least
                raise ConnectionError(f"{self.where} announces an answer of {size} bytes")
            at += 4
            if len(data) - at < size:
                self._incoming = _Incoming(bytearray(size))
                self._incoming.have = len(data) - at
                self._incoming.view[: self._incoming.have] = data[at:]
                self._rest = b""
                return
            answers.append(self._answered(memoryview(data)[at : at + size]))
            at += size
        self._rest = data[at:]

    def _answered(self, answer: memoryview) -> tuple[Pending, memoryview]:
        (correlation,) = _SIZE.unpack_from(answer)
        if not self.pending or self.pending[0].correlation != correlation:
            raise ConnectionError(f"{self.where} answers request {correlation}, which is not the next one")
        pending = self.pending.popleft()
        return pending, answer[5 if pending.api in _FLEXIBLE else 4 :]

    def call(self, api: ApiKey, body: Buffer, *, until: float) -> memoryview:
        """One request whose answer is waited for. Nothing else may be under way."""
        self.send(api, [body], purpose=None, until=until)
        self.flush()
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.where} did not answer in time")
            if not ready([self], left):
                continue
            if self.wants_write:
                self.flush()
            if answers := self.receive():
                return answers[0][1]

    def _authenticate(self, credentials: Credentials, until: float) -> None:
        mechanism = credentials.mechanism.encode()
        hello = self.call(_SASL_HANDSHAKE, len(mechanism).to_bytes(2) + mechanism, until=until)
        if code := int.from_bytes(hello[:2]):
            raise TurnedAwayError(f"{self.where} does not offer {credentials.mechanism}: {KafkaError(code).str()}")
        exchange = credentials.exchange()
        said = next(exchange)
        while True:
            answer = self.call(_SASL_AUTHENTICATE, _SIZE.pack(len(said)) + said, until=until)
            code, size = int.from_bytes(answer[:2]), int.from_bytes(answer[2:4], signed=True)
            at = 4 + max(size, 0)
            if code:
                credentials.forget_token()
                raise TurnedAwayError(bytes(answer[4:at]).decode() or KafkaError(code).str())
            told = _SIZE.unpack_from(answer, at)[0]
            at += 4
            life_ms = int.from_bytes(answer[at + told : at + told + 8])
            try:
                said = exchange.send(bytes(answer[at : at + told]))
            except StopIteration:
                if life_ms:
                    # The broker closes it at the end of the credentials' life.
                    self.renew_at = time.monotonic() + life_ms / 1000 * 0.8
                return


def ready(
    connections: Iterable[BrokerConnection], seconds: float, *, end: socket.socket | None = None
) -> list[BrokerConnection]:
    """The connections that can go on, once one of them can; none after so many seconds.

    Args:
        connections: to wait for.
        seconds: to wait at most.
        end: ends the wait once its other side is closed.
    """
    by_number, poll = {}, select.poll()
    found = []
    for each in connections:
        if isinstance(each._socket, ssl.SSLSocket) and each._socket.pending():  # noqa: SLF001 -- of this module
            found.append(each)  # decrypted already: the kernel has nothing to show
        by_number[each.fileno()] = each
        poll.register(each.fileno(), select.POLLIN | (select.POLLOUT if each.wants_write else 0))
    if end is not None:
        poll.register(end, select.POLLIN)
    elif not by_number:
        time.sleep(max(0.0, seconds))  # nothing is under way: the wait is for a quota, or for a backoff to end
        return found
    events = poll.poll(0 if found else max(0.0, seconds) * 1000)
    able = (by_number[number] for number, _ in events if number in by_number)
    return found + [each for each in able if each not in found]


def take_answers(
    busy: Iterable[BrokerConnection],
    answering: Iterable[BrokerConnection],
    take: Callable[[BrokerConnection, Any, memoryview], None],
    lose: Callable[[BrokerConnection], None],
) -> None:
    """Read the answers that are there.

    Args:
        busy: connections with requests under way.
        answering: those of them that can go on.
        take: called with each answer, and with what its request was for.
        lose: called with a connection that broke, or whose answer is overdue.
    """
    for connection in answering:
        try:
            connection.flush()
            for pending, answer in connection.receive():
                take(connection, pending.purpose, answer)
        except OSError:
            lose(connection)
    now = time.monotonic()
    for connection in busy:
        if connection.pending and connection.pending[0].until <= now:
            lose(connection)
