"""The brokers of one cluster: connections to them, and the leaders of partitions.

Connections are of two kinds, so that a question never waits behind a fetch or a batch that is under way.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

from confluent_kafka import KafkaError

from mirrorless.adapters.aws.secrets import forget_secrets
from mirrorless.adapters.kafka.client import MARGIN_SECONDS, client_config
from mirrorless.adapters.kafka.wire.authentication import Credentials, TurnedAwayError, tls_context
from mirrorless.adapters.kafka.wire.connection import ApiKey, BrokerConnection, Buffer
from mirrorless.adapters.kafka.wire.requests import (
    API_VERSIONS,
    METADATA,
    NEEDED,
    Leader,
    MetadataAnswer,
    metadata,
    read_metadata,
    read_versions,
)
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition

ConnectionKind = Literal["data", "questions"]

CALL_SECONDS: Final = 10.0
"""For the answer to one question, until it is asked elsewhere."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Between tries, in seconds."""

LEADER_MOVED: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""Errors of a partition that pass, once its leader is read anew."""

_NO_LEADER: Final = Leader(-1, -1)


def until_of(deadline: Deadline) -> float:
    """The end of a deadline by the monotonic clock, without its margin."""
    return time.monotonic() + deadline() - MARGIN_SECONDS


class Backoff:
    """Pauses that double, up to a second."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def pause(self) -> float:
        """Seconds to wait now; half of them by chance, so that many do not come back at once."""
        now, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return now * (0.5 + random.random() / 2)  # noqa: S311 -- a delay, not a secret


class WireCluster:
    """One cluster. What it raises is OSError, or a subclass; `translated` makes Retriable of it."""

    def __init__(
        self, cluster: ClusterSettings, *, flow: str, client_role: str, needed: Iterable[ApiKey] = NEEDED
    ) -> None:
        """Nothing is opened yet.

        Args:
            cluster: to connect to.
            flow: part of what it calls itself in the brokers' logs.
            client_role: the same.
            needed: requests without which no connection is taken.
        """
        self.where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self.leaders: dict[TopicPartition, Leader] = {}
        self.topic_errors: dict[str, int] = {}
        self._cluster = cluster
        self._client_id = f"{flow}|{client_role}"
        self._bootstrap = [_address(each) for each in cluster.bootstrap.split(",")]
        self._brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[int, ConnectionKind], BrokerConnection] = {}
        self._asleep: dict[int, tuple[float, Backoff]] = {}
        self._access: tuple[ssl.SSLContext | None, Credentials] | None = None
        self._needed = tuple(needed)
        self._served: dict[int, tuple[int, int]] | None = None
        """Versions of requests, as the first broker that was met serves them."""

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Make Retriable of what this cluster raises."""
        try:
            yield
        except TurnedAwayError as exc:
            forget_secrets()
            self._access = None
            raise Retriable(
                f"the cluster turned us away: {exc}",
                where=self.where,
                hint="compare the flow's authentication, its secret and its `ca` with what this listener requires",
            ) from exc
        except OSError as exc:
            raise Retriable(f"the cluster did not {what}: {exc}", where=self.where) from exc

    # Connections

    def connection(self, node: int, kind: ConnectionKind, until: float) -> BrokerConnection:
        """The connection to a broker, opened if need be.

        Raises:
            OSError: it cannot be opened, or could not a moment ago.
        """
        found = self._connections.get((node, kind))
        if found is not None and (time.monotonic() < found.renew_at or found.pending):
            return found
        if found is not None:
            self.drop(found)
        now = time.monotonic()
        asleep, backoff = self._asleep.get(node, (0.0, Backoff()))
        if now < asleep:
            raise ConnectionError(f"broker {node} could not be reached, and is tried again in a moment")
        if until <= now:
            raise TimeoutError("no time was left to connect")
        address = self._brokers.get(node)
        if address is None:
            raise ConnectionError(f"broker {node} is not in the cluster's metadata")
        try:
            opened = self._open(address, node, until)
        except TurnedAwayError:
            raise
        except OSError:
            self._asleep[node] = (time.monotonic() + backoff.pause(), backoff)
            raise
        self._asleep.pop(node, None)
        self._connections[node, kind] = opened
        return opened

    def learn(self, node: int, address: tuple[str, int]) -> None:
        """Note where a broker is."""
        self._brokers[node] = address

    def drop(self, connection: BrokerConnection) -> None:
        """Close a connection that was lost."""
        for key, each in list(self._connections.items()):
            if each is connection:
                del self._connections[key]
        connection.close()

    def data_connections(self) -> list[BrokerConnection]:
        """Those that are open."""
        return [each for (_, kind), each in self._connections.items() if kind == "data"]

    def data_connection(self, node: int) -> BrokerConnection | None:
        """That to a broker, if it is open."""
        return self._connections.get((node, "data"))

    def close(self) -> None:
        """Close all connections; the next call opens others."""
        for each in self._connections.values():
            each.close()
        self._connections.clear()

    # Questions

    def ask(self, node: int, api: ApiKey, body: Buffer, until: float) -> memoryview:
        """One question to a broker.

        Raises:
            OSError: there was no answer; the connection is closed.
        """
        connection = self.connection(node, "questions", until)
        try:
            return connection.call(api, body, until=min(until, time.monotonic() + CALL_SECONDS))
        except OSError:
            self.drop(connection)
            raise

    def refresh(self, topics: Iterable[str], until: float) -> None:
        """Read the leaders of topics anew, from whichever broker answers.

        Raises:
            OSError: none does.
        """
        wanted = set(topics)
        answer = self._from_any(lambda connection: _described(connection, wanted, until), until)
        self._brokers |= answer.brokers
        for place in [place for place in self.leaders if place[0] in wanted]:
            del self.leaders[place]
        self.leaders |= answer.leaders
        self.topic_errors = answer.topic_errors

    def refresh_until(self, topics: Iterable[str], until: float) -> None:
        """Read the leaders of topics anew, again and again while no broker answers.

        Raises:
            OSError: none did in time.
        """
        backoff = Backoff()
        while True:
            try:
                return self.refresh(topics, until)
            except TurnedAwayError:
                raise
            except OSError:
                pause = backoff.pause()
                if time.monotonic() + pause >= until:
                    raise
            time.sleep(pause)

    def leader(self, place: TopicPartition) -> Leader:
        """As it was read last."""
        return self.leaders.get(place, _NO_LEADER)

    def forget_leader(self, place: TopicPartition) -> None:
        """It is read anew before it is needed."""
        self.leaders.pop(place, None)

    @property
    def nodes(self) -> list[int]:
        """The brokers in the metadata that were read last."""
        return list(self._brokers)

    def any_node(self, until: float) -> int:
        """A broker that answers.

        Raises:
            OSError: none does.
        """
        if not self._brokers:
            self.refresh((), until)
        known = list(self._connections)
        nodes = [node for node, _ in known if node in self._brokers] or list(self._brokers)
        now = time.monotonic()
        awake = [node for node in nodes if self._asleep.get(node, (0.0,))[0] <= now]
        return random.choice(awake or list(self._brokers))  # noqa: S311 -- which broker, not a secret

    def _from_any(self, ask: Callable[[BrokerConnection], MetadataAnswer], until: float) -> MetadataAnswer:
        failure: OSError = ConnectionError("no broker was tried")
        for node in list(self._brokers):
            try:
                connection = self.connection(node, "questions", until)
            except TurnedAwayError:
                raise
            except OSError as exc:
                failure = exc
                continue
            try:
                return ask(connection)
            except OSError as exc:
                failure = exc
                self.drop(connection)
        # Those that were known are all gone, or none is known yet.
        for address in random.sample(self._bootstrap, len(self._bootstrap)):
            try:
                opened = self._open(address, -1, until)
            except TurnedAwayError:
                raise
            except OSError as exc:
                failure = exc
                continue
            try:
                return ask(opened)
            except OSError as exc:
                failure = exc
            finally:
                opened.close()
        raise failure

    def _open(self, address: tuple[str, int], node: int, until: float) -> BrokerConnection:
        if self._access is None:
            config = client_config(self._cluster, self._client_id)
            self._access = tls_context(config), Credentials(config)
        tls, credentials = self._access
        opened = BrokerConnection(
            address,
            node=node,
            client_id=self._client_id,
            tls=tls,
            credentials=credentials,
            seconds=until - time.monotonic(),
        )
        if self._served is None:
            with suppress_close(opened):
                self._served = _versions(opened, self._needed, until)
        return opened

    def serves(self, api: ApiKey) -> bool:
        """Whether the brokers that were met serve a request; true until one was."""
        if not self._served:
            return True
        first, last = self._served.get(api[0], (1, 0))
        return first <= api[1] <= last


@contextmanager
def suppress_close(connection: BrokerConnection) -> Iterator[None]:
    """Close a connection that the body fails on."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            connection.close()
        raise


def _described(connection: BrokerConnection, topics: set[str], until: float) -> MetadataAnswer:
    return read_metadata(connection.call(METADATA, metadata(topics), until=min(until, time.monotonic() + CALL_SECONDS)))


def _versions(connection: BrokerConnection, needed: Iterable[ApiKey], until: float) -> dict[int, tuple[int, int]]:
    served = read_versions(connection.call(API_VERSIONS, b"", until=until))
    for number, version in needed:
        first, last = served.get(number, (1, 0))
        if served and not first <= version <= last:
            raise ConnectionError(
                f"{connection.where} serves request {number} in versions {first} to {last}, and {version} is needed: "
                "records of this cluster are copied one by one only (`copy: records`)"
            )
    return served


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    return host.strip("[]"), int(port)
