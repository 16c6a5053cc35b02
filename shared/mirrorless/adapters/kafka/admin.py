"""A warm admin client, one per environment, replaced after every failure.

Measured with confluent-kafka 2.16 across a broker's restart: a warm client that listed group offsets timed out for ever
(its coordinator had left the metadata for a moment), and one that listed log ends got FENCED_LEADER_EPOCH. A fresh
client answered at once in both cases. So what a warm client fails to read is read once more by a fresh one.

A fresh one describes its cluster before it lists offsets: `connected`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from mirrorless.adapters.kafka.client import (
    MARGIN_SECONDS,
    TurnedAway,
    answer,
    client_config,
    seconds_left,
    translated,
)
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings

LASTING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 -- the client's public constants look so
        KafkaError._NOENT,  # noqa: SLF001 -- same: no requested partition has a leader; mostly none exists
    }
)
"""A fresh client would get the same answer."""

DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""What the operator mends, by rights that are lacking."""

MOVING: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_LEADER_FOR_PARTITION,  # also from the leader of a new topic, until it has opened the log
        KafkaError.UNKNOWN_LEADER_EPOCH,  # same
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # from a new leader, until it has its followers' ends (KIP-207)
    }
)
"""A group's coordinator or a partition's leader is elsewhere, or not ready yet. Nothing was done; soon it answers."""

SETTLE_SECONDS: Final = 2.0
"""The longest wait for a coordinator or a leader that moves; after that the next round or delivery tries again."""

LOOK_SECONDS: Final = 1.0
"""Between two looks whether a new client was turned away: it would wait on."""

_K = TypeVar("_K", bound=Hashable)
Call = Callable[[AdminClient, list[_K], float], Mapping[_K, Future[Any]]]
"""A call about some keys, which may take that many seconds: one future for each key."""


def offsets_call(
    spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> Call[tuple[str, int]]:
    """The call that lists one kind of offset of topic-partitions."""

    def call(client: AdminClient, some: list[tuple[str, int]], seconds: float) -> Mapping[tuple[str, int], Future[Any]]:
        wanted = {TopicPartition(*place): spec for place in some}
        futures = client.list_offsets(wanted, isolation_level=isolation, request_timeout=seconds)
        return {(at.topic, at.partition): future for at, future in futures.items()}

    return call


def connected(client: AdminClient, deadline: Deadline, turned_away: TurnedAway | None = None) -> AdminClient:
    """The client, once it has its brokers' metadata: a new client's first `list_offsets` may otherwise wait for ever.

    Measured with librdkafka 2.16 on a busy machine: 28 of 280 new clients timed out in their first `list_offsets`, with
    "Failed to query partition leaders"; of 240 that had described the cluster first, none did. The description is a
    metadata request without topics: it needs no right.

    Raises:
        KafkaException: the cluster does not answer.
        Retriable: it turned the client away.
    """
    described = client.describe_cluster(request_timeout=seconds_left(deadline))
    while turned_away is not None and not wait([described], min(LOOK_SECONDS, seconds_left(deadline))).done:
        client.poll(0)
        turned_away.check()
        if deadline() <= MARGIN_SECONDS:
            break
    answer(described, deadline)
    return client


class WarmAdmin:
    """One cluster's admin client."""

    def __init__(self, cluster: ClusterSettings, client_id: str, options: Mapping[str, Any] | None = None) -> None:
        """Args: client_id: `flow|role`, for the brokers' logs. options: of librdkafka, beside the cluster's."""
        self._cluster = cluster
        self._client_id = client_id
        self._options = dict(options or {})
        self._client: AdminClient | None = None
        self._turned_away = TurnedAway(client_id)

    def client(self) -> AdminClient:
        """The warm client, opened if need be. Keep it in a variable for as long as its futures are awaited.

        Raises:
            ConfigurationError, Retriable: see `client_config`.
        """
        if self._client is None:
            config = client_config(self._cluster, self._client_id)
            self._client = AdminClient(config | self._options)
            self._turned_away = config["error_cb"]
        self._turned_away.why = ""
        return self._client

    def discard(self) -> None:
        """Forget the client after a failure: the next call opens another.

        Raises:
            Retriable: the failure's reason, where the cluster turned the client away.
        """
        client, self._client = self._client, None
        if client is not None:
            client.poll(0)  # an admin client calls its error callback only now
            self._turned_away.check()

    @contextmanager
    def asked(self, what: str, where: str) -> Iterator[AdminClient]:
        """The client, for calls that end in here; after a failure it is discarded.

        Raises:
            Retriable: the cluster did not do `what`.
        """
        with translated(what, where):
            try:
                yield self.client()
            except KafkaException:
                self.discard()
                raise

    def call_each(
        self, keys: Iterable[_K], call: Call[_K], deadline: Deadline, *, chunk: int
    ) -> tuple[dict[_K, Any], dict[_K, KafkaError]]:
        """What the cluster answers about each key, and why it does not about the others. For reads only.

        Args:
            keys: each is requested once, however often it comes.
            call: makes one call, or one per key, about up to `chunk` keys.
            deadline: seconds left; a warm client gets half of them.
            chunk: how many keys are under way at a time.
        """
        begun = deadline()
        answers, failures = self._call_twice(keys, call, deadline, chunk)
        while moving := [key for key, error in failures.items() if error.code() in MOVING]:
            if deadline() < max(begun - SETTLE_SECONDS, MARGIN_SECONDS):
                break
            time.sleep(0.1)  # between two looks at a condition with a deadline
            more, failed = self._pass(moving, call, deadline, chunk)
            answers |= more
            failures = {key: error for key, error in failures.items() if key not in moving} | failed
        return answers, failures

    def _call_twice(
        self, keys: Iterable[_K], call: Call[_K], deadline: Deadline, chunk: int
    ) -> tuple[dict[_K, Any], dict[_K, KafkaError]]:
        wanted = list(dict.fromkeys(keys))
        if self._client is None:
            return self._pass(wanted, call, deadline, chunk)
        begun = deadline()
        answers, failures = self._pass(wanted, call, lambda: deadline() - begun / 2, chunk)
        if again := [key for key, error in failures.items() if error.code() not in LASTING]:
            more, failed = self._pass(again, call, deadline, chunk)
            answers |= more
            failures = {key: error for key, error in failures.items() if key not in again} | failed
        return answers, failures

    def _pass(
        self, keys: list[_K], call: Call[_K], deadline: Deadline, chunk: int
    ) -> tuple[dict[_K, Any], dict[_K, KafkaError]]:
        new = self._client is None
        client = self.client()
        if new:
            try:
                connected(client, deadline, self._turned_away)
            except KafkaException as exc:
                self.discard()
                return {}, dict.fromkeys(keys, exc.args[0])
            except Retriable:
                self._client = None
                raise
        answers: dict[_K, Any] = {}
        failures: dict[_K, KafkaError] = {}
        for some in _chunks(keys, chunk):
            try:
                futures = call(client, some, seconds_left(deadline))
            except KafkaException as exc:
                failures |= dict.fromkeys(some, exc.args[0])
                continue
            for key, future in futures.items():
                try:
                    answers[key] = answer(future, deadline)
                except KafkaException as exc:
                    failures[key] = exc.args[0]
        if any(error.code() not in LASTING for error in failures.values()):
            if new:
                self.discard()
            self._client = None  # of a warm client nothing is believed; a fresh one says why
        return answers, failures


def first_cause(errors: Collection[KafkaError]) -> str:
    """The first of some errors in the words of the cluster, and how many there are."""
    first = next(iter(errors))
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"{first.str()} ({first.name()}){more}"


def _chunks(keys: list[_K], size: int) -> Iterator[list[_K]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]
