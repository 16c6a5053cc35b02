"""A Kafka cluster at a distance: its clients reach it through a proxy that delays every byte."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from lab.servers.kafka import KafkaCluster
from lab.servers.process import free_port


class DistantKafka(KafkaCluster):
    """A cluster whose advertised address is the proxy's."""

    def __init__(self, *, alias: str, folder: Path) -> None:
        self._behind = f"127.0.0.1:{free_port()}"
        super().__init__(alias=alias, folder=folder)
        self.round_trip_ms = 0.0
        """Half of it each way; may be changed at any time."""
        self.connections = 0
        """Accepted so far; every client opens one or more."""
        host, port = self.bootstrap.split(":")
        self._listener = socket.create_server((host, int(port)))
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self, timeout: float = 20.0) -> None:
        """See `Server.stop`; the proxy is closed too."""
        self._listener.close()
        super().stop(timeout)

    def _write_settings(self) -> str:
        path = Path(super()._write_settings())
        listeners = f"listeners=PLAINTEXT://{self.bootstrap}"
        text = path.read_text()
        path.write_text(text.replace(f"\n{listeners},", f"\nlisteners=PLAINTEXT://{self._behind},"))
        return str(path)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.connections += 1
            host, port = self._behind.split(":")
            try:
                broker = socket.create_connection((host, int(port)))
            except OSError:
                client.close()  # the broker is not there
                continue
            # Both before a thread starts: it may close them at once.
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for one, other in ((client, broker), (broker, client)):
                pending: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=self._receive, args=(one, pending), daemon=True).start()
                threading.Thread(target=_send, args=(other, pending), daemon=True).start()

    def _receive(self, connection: socket.socket, pending: SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = connection.recv(1 << 20)
            except OSError:
                data = b""
            pending.put((time.monotonic() + self.round_trip_ms / 2_000, data))


def _send(connection: socket.socket, pending: SimpleQueue[tuple[float, bytes]]) -> None:
    while True:
        due, data = pending.get()
        time.sleep(max(0.0, due - time.monotonic()))  # the delay
        try:
            if not data:
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()
                return
            connection.sendall(data)
        except OSError:
            return
