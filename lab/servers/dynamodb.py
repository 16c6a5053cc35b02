"""DynamoDB Local, Amazon's own, as a child process.

A DynamoDB that misbehaves: an HTTP proxy before DynamoDB Local, which answers whatever is not refused here.

proxy.begin(Misbehaviour(kind="throttled parts", share=0.5))    ...    proxy.end(misbehaviour)

Refusals are in the words of DynamoDB, which DynamoDB Local never gives. Their shapes are those of the API reference and
of botocore's model: the errors that each operation names, `UnprocessedKeys`, `UnprocessedItems`. Status and type:
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html
"""

from __future__ import annotations

import json
import os
import socket
import struct
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import create_loader

from lab.servers.artifacts import TEMPLATES, classpath, compiled, compiles, dynamodb_jars, java_command
from lab.servers.http_server import LOOPBACK, HttpConnection, HttpServer
from lab.servers.process import Server, free_port
from mirrorless.flow.settings import Tables
from mirrorless.flow.tables import definitions

if TYPE_CHECKING:
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

    def create_tables(self, tables: Tables) -> None:
        """Create those that are not there."""
        client = self.client()
        there = set(client.list_tables()["TableNames"])
        for table in definitions(tables):
            if (request := table.create_request())["TableName"] not in there:
                client.create_table(**request)

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


MisbehaviourKind = Literal["throttled parts", "throttled call", "server error", "slow answer", "lost answer"]
"""
throttled parts   single keys or items left unprocessed
throttled call    the whole call refused
server error      status 500; every second call is carried out all the same
slow answer       carried out, and answered late
lost answer       carried out, and the connection reset instead of an answer
"""

Json = dict[str, Any]
_Headers = Sequence[tuple[str, str]]

OPERATIONS_OF_PARTS: Final = frozenset({"BatchGetItem", "BatchWriteItem"})
"""Operations of which single parts may fail."""

SERVER_SECONDS: Final = 60.0
"""For DynamoDB Local to answer."""
OK: Final = 200
_ABORTIVE: Final = struct.pack("ii", 1, 0)
_OWN_HEADERS: Final = frozenset({"content-length", "x-amz-crc32", "connection", "keep-alive", "transfer-encoding"})
"""Of an answer: written anew, or of one connection alone."""


_SERVICE: Final = "com.amazonaws.dynamodb.v20120810#"
_THROTTLED: Final = (
    "The level of configured provisioned throughput for the table was exceeded. "
    "Consider increasing your provisioning level with the UpdateTable API."
)
_BROKEN: Final = "Internal server error"


def throttled_call() -> tuple[int, Json]:
    """Status and body of an answer to a call that exceeds a table's throughput, before anything is carried out."""
    return 400, {"__type": f"{_SERVICE}ProvisionedThroughputExceededException", "message": _THROTTLED}


def server_error() -> tuple[int, Json]:
    """Status and body of an answer that leaves open whether the call was carried out."""
    return 500, {"__type": f"{_SERVICE}InternalServerError", "message": _BROKEN}


def parts(request: Json) -> list[Any]:
    """The parts of a call of one of OPERATIONS_OF_PARTS: keys or writes, in their order."""
    return [each for table in request["RequestItems"].values() for each in _writes_or_keys(table)]


def split(operation: str, request: Json, refused: Collection[int]) -> tuple[Json, Callable[[Json], Json]]:
    """Throttle some parts of a call, but not all of them.

    Args:
        operation: one of OPERATIONS_OF_PARTS.
        request: as it was sent.
        refused: the indices in `parts`.

    Returns:
        the request for the rest; and the answer to all, given the answer to the rest.
    """
    taken: dict[str, Any] = {}
    left: dict[str, Any] = {}
    index = 0
    for table, requested in request["RequestItems"].items():
        for part in _writes_or_keys(requested):
            _add(left if index in refused else taken, table, requested, part)
            index += 1
    unprocessed = "UnprocessedKeys" if operation == "BatchGetItem" else "UnprocessedItems"
    return {**request, "RequestItems": taken}, lambda answer: {**answer, unprocessed: left}


def _writes_or_keys(table: Any) -> list[Any]:
    """Of one table: BatchGetItem has a map with keys, BatchWriteItem a list."""
    return list(table["Keys"] if isinstance(table, dict) else table)


def _add(tables: dict[str, Any], name: str, requested: Any, part: Any) -> None:
    if isinstance(requested, dict):
        tables.setdefault(name, {**requested, "Keys": []})["Keys"].append(part)
    else:
        tables.setdefault(name, []).append(part)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Misbehaviour:
    """One way in which calls go wrong, while it is under way."""

    kind: MisbehaviourKind
    share: float = 1.0
    """Of the calls, or of their parts."""
    seconds: float = 0.0
    """How late a slow answer is."""


class DynamoDbProxy:
    """An HTTP proxy on loopback with a thread for each connection.

    Attributes:
        endpoint: for clients, the same for the life of this object.
        behind: the port of DynamoDB Local.
        carried_out: how many calls each kind has hit.
    """

    def __init__(self, port: int, behind: int, *, random: Random | None = None) -> None:
        """Args: port: that clients call. behind: DynamoDB Local's. random: which calls are hit."""
        self.carried_out = Counter[MisbehaviourKind]()
        self.behind = behind
        self.endpoint = f"http://{LOOPBACK}:{port}"
        self._port = port
        self._random = random or Random()  # noqa: S311 -- a fault, not a secret
        self._under_way: list[Misbehaviour] = []
        self._server: _Server | None = None

    def open(self) -> None:
        """Begin to accept connections; nothing happens to a proxy that is open.

        Raises:
            OSError: the port is taken.
        """
        if self._server is None:
            self._server = _Server(self, self._port)

    def close(self) -> None:
        """End every connection and accept none; the proxy may be opened again. Its threads end."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def begin(self, misbehaviour: Misbehaviour) -> None:
        """Let calls go wrong from now on."""
        self._under_way = [*self._under_way, misbehaviour]

    def end(self, misbehaviour: Misbehaviour) -> None:
        """Let them succeed again."""
        self._under_way = [each for each in self._under_way if each is not misbehaviour]

    def draw(self, operation: str) -> Misbehaviour | None:
        """What happens to a call now; the first misbehaviour that hits it."""
        for each in self._under_way:
            by_parts = each.kind == "throttled parts"
            if operation in OPERATIONS_OF_PARTS if by_parts else self.drawn(each.share):
                return each
        return None

    def drawn(self, share: float) -> bool:
        """Whether this is one of a share of the cases."""
        return self._random.random() < share


class _Server(HttpServer):
    """What decides, beside the connections."""

    daemon_threads = False
    """Joined when it ends."""

    def __init__(self, proxy: DynamoDbProxy, port: int) -> None:
        self.proxy = proxy
        super().__init__(_Call, port, name="DynamoDB proxy")


class _Call(HttpConnection):
    """The calls of one connection, one after the other."""

    server: _Server

    def setup(self) -> None:
        """Begin a connection."""
        super().setup()
        self._onward = HTTPConnection(LOOPBACK, self.server.proxy.behind, timeout=SERVER_SECONDS)

    def finish(self) -> None:
        """End it."""
        self._onward.close()
        with suppress(OSError):  # the client has gone before its answer
            super().finish()

    def handle(self) -> None:
        """Answer call after call."""
        try:
            super().handle()
        except (OSError, HTTPException):
            # The client has gone, or DynamoDB Local has: its connections break with it.
            self._reset()

    def do_POST(self) -> None:  # noqa: N802 -- the server looks for this name
        """One call of the API."""
        proxy = self.server.proxy
        body = self.body()
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        misbehaviour = proxy.draw(operation)
        if misbehaviour is None:
            self._answer(*self._forward(body))
        elif misbehaviour.kind == "throttled parts":
            self._refuse_parts(operation, body, misbehaviour)
        else:
            proxy.carried_out[misbehaviour.kind] += 1
            self._misbehave(body, misbehaviour)

    def _misbehave(self, body: bytes, misbehaviour: Misbehaviour) -> None:
        match misbehaviour.kind:
            case "throttled call":
                self._compose(*throttled_call())
            case "server error":
                if self.server.proxy.drawn(0.5):
                    self._forward(body)
                self._compose(*server_error())
            case "slow answer":
                answer = self._forward(body)
                if self.server.closing.wait(misbehaviour.seconds):
                    self._reset()
                else:
                    self._answer(*answer)
            case _:
                self._forward(body)
                self._reset()

    def _refuse_parts(self, operation: str, body: bytes, misbehaviour: Misbehaviour) -> None:
        proxy, request = self.server.proxy, json.loads(body)
        count = len(parts(request))
        refused = {index for index in range(count) if proxy.drawn(misbehaviour.share)}
        if not refused:
            self._answer(*self._forward(body))
            return
        proxy.carried_out[misbehaviour.kind] += 1
        if len(refused) == count:
            self._compose(*throttled_call())  # as DynamoDB answers where it processes no part at all
            return
        rest, whole = split(operation, request, refused)
        status, headers, answer = self._forward(json.dumps(rest).encode())
        if status == OK:
            answer = json.dumps(whole(json.loads(answer))).encode()
        self._answer(status, headers, answer)

    def _forward(self, body: bytes) -> tuple[int, _Headers, bytes]:
        """The call, to DynamoDB Local, and its answer."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN_HEADERS}
        self._onward.request("POST", self.path, body=body, headers=headers)
        response = self._onward.getresponse()
        return response.status, response.getheaders(), response.read()

    def _compose(self, status: int, answer: Json) -> None:
        headers = [("x-amzn-RequestId", uuid.uuid4().hex.upper()), ("Content-Type", "application/x-amz-json-1.0")]
        self._answer(status, headers, json.dumps(answer).encode())

    def _answer(self, status: int, headers: _Headers, body: bytes) -> None:
        kept = {name: value for name, value in headers if name.lower() not in _OWN_HEADERS}
        self.answer(status, body, {**kept, "x-amz-crc32": str(zlib.crc32(body))})

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORTIVE)
        self.connection.close()  # carried out once the streams on it are closed, by `finish`
        self.close_connection = True
