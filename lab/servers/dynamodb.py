"""DynamoDB Local, Amazon's own, as a child process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import create_loader

from lab.servers.artifacts import TEMPLATES, classpath, compiled, compiles, dynamodb_jars, java_command
from lab.servers.dynamodb_proxy import DynamoDbProxy
from lab.servers.process import free_port
from lab.servers.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SERVER = "software.amazon.dynamodb.services.local.main.ServerRunner"

REGION = "us-east-1"
"""A client has to name a region; with `-sharedDb` all regions and credentials see the same tables."""

NOT_LOOKED_UP = (None, None, None, None)
"""For botocore: a setting has no file entry, no environment variable, no default and no conversion."""

LOADER: Any = create_loader()
"""Holds what it has read of DynamoDB's interface: to read that for each client costs a tenth of a second of CPU."""


class DynamoDbLocal(Server):
    """One DynamoDB Local. Ready means that it answers ListTables.

    It listens on loopback alone where this Java can compile (a JDK): it has no option for that, so a few lines of Java
    start it. With a mere runtime it listens on every interface of the machine.

    On disk a write waits until SQLite has synchronised a file: 20 to 40 ms on a virtual disk, at times half a second.
    In memory it does not, as DynamoDB itself answers in single-digit milliseconds.

    Attributes:
        endpoint: `http://127.0.0.1:port`, the same for the life of this object.
    """

    def __init__(
        self, *, folder: Path, in_memory: bool = False, proxied: bool = False, port: int | None = None
    ) -> None:
        """A server that is not started.

        Args:
            folder: of its data and its log.
            in_memory: keep the tables in the process, so that a stop or a kill loses them.
            port: where it listens; None for a free one.
            proxied: whether `endpoint` is that of a proxy that can let calls fail.
        """
        self._in_memory = in_memory
        self._own_client: Any = None
        self._port = port or free_port()
        self._proxy = DynamoDbProxy(free_port(), self._port) if proxied else None
        self.endpoint = self._proxy.endpoint if self._proxy else self._address
        super().__init__(title=f"DynamoDB Local at {self.endpoint}", folder=folder, log="dynamodb.log")

    @property
    def proxy(self) -> DynamoDbProxy:
        """What can let calls fail.

        Raises:
            ValueError: there is none.
        """
        if self._proxy is None:
            raise ValueError(f"{self.title} was made without a proxy")
        return self._proxy

    def begin_start(self) -> None:
        """See `Server.begin_start`; the proxy is opened first, and stays open over a kill."""
        if self._proxy is not None:
            self._proxy.open()
        super().begin_start()

    def stop(self, timeout: float = 20.0) -> None:
        """See `Server.stop`; the proxy is closed first."""
        if self._proxy is not None:
            self._proxy.close()
        super().stop(timeout)

    def client(self, config: Config | None = None) -> Any:
        """A boto3 client of the server itself: nothing of the environment, nor of a proxy before the server.

        Without a `config` it is always the same one: making one costs 50 ms of CPU.
        """
        if config is not None:
            return self._client(config)
        if self._own_client is None:
            self._own_client = self._client(Config())
        return self._own_client

    @property
    def _address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _command(self) -> list[str]:
        jars = dynamodb_jars()
        return [
            java_command(),
            "-Xmx256m",
            # As for the brokers: fewest threads, quickest start.
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            # Tables live in SQLite, through a native library that lies among the jars.
            f"-Djava.library.path={jars}",
            *self._program(jars),
            "-port",
            str(self._port),
            *self._storage(),
            # Else each pair of credentials and region would have tables of its own.
            "-sharedDb",
            # The lab talks to nobody outside this machine.
            "-disableTelemetry",
        ]

    def _program(self, jars: Path) -> list[str]:
        """The class path, and the class to run."""
        if not compiles(java_command()):
            return ["-cp", classpath(jars), SERVER]
        source = TEMPLATES / "LoopbackDynamoDb.java"
        return ["-cp", os.pathsep.join((str(compiled(source, jars)), classpath(jars))), source.stem]

    def _storage(self) -> list[str]:
        if self._in_memory:
            return ["-inMemory"]
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        return ["-dbPath", str(data)]

    def _probe(self) -> Callable[[], str]:
        # One short try each: the poll is the retry.
        client = self._client(Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 1}))

        def obstacle() -> str:
            try:
                client.list_tables()
            except (BotoCoreError, ClientError) as exc:
                return str(exc)
            return ""

        return obstacle

    def _client(self, config: Config) -> Any:
        # The operator's own profile and configuration file must neither redirect the lab nor be missed by it.
        session = botocore.session.Session({"profile": NOT_LOOKED_UP, "config_file": NOT_LOOKED_UP})
        session.register_component("data_loader", LOADER)
        return session.create_client(
            "dynamodb",
            endpoint_url=self._address,
            region_name=REGION,
            aws_access_key_id="lab",
            aws_secret_access_key="lab",  # noqa: S106 - DynamoDB Local asks for some credentials and checks none
            config=config.merge(Config(proxies={})),  # nor may a proxy stand between us and loopback
        )
