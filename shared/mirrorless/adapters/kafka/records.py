"""Internal topics: records written to partition 0, and the ends of logs.

Heartbeats, checkpoints and offset syncs: some thousand records at a time, each of which replaces the one with its key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from mirrorless.adapters.kafka.admin import DENIED, WarmAdmin, first_cause
from mirrorless.adapters.kafka.client import MARGIN_SECONDS, answer, client_config, seconds_left
from mirrorless.adapters.kafka.writer import KafkaWriter
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import LogEnds, TopicPartition
from mirrorless.records.record import Record

InternalRecord = tuple[str, bytes, bytes | None, int]
"""Topic, key, value (None removes the key), and timestamp in ms since the epoch."""

PROBE_AFTER_SECONDS: Final = 300
"""A writer idle for longer is probed first: brokers close idle connections after 10 minutes."""

PLACES: Final = 2000
"""Partitions of one call."""

_WRITER: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,  # which is acks=all, and in order
    "linger.ms": 5,
    "message.timeout.ms": 30_000,
    "socket.timeout.ms": 10_000,
}

_ABSENT: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 -- the client's public constants look so
    }
)

_WANTED: Final = (
    (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),  # type: ignore[no-untyped-call]  # theirs
    (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),  # type: ignore[no-untyped-call]  # theirs
    (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),  # type: ignore[no-untyped-call]  # theirs
)
"""What the members of `LogEnds` are called in a ListOffsets request."""


class KafkaRecords:
    """One cluster's internal topics, with one warm producer and one warm admin client."""

    def __init__(
        self, cluster: ClusterSettings, *, flow: str, client_role: str, options: Mapping[str, Any] | None = None
    ) -> None:
        """Args: flow, client_role: what the clients call themselves in the brokers' logs. options: see `WarmAdmin`."""
        self._cluster = cluster
        self._client_id = f"{flow}|{client_role}"
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._admin = WarmAdmin(cluster, self._client_id, options)
        self._writer: KafkaWriter | None = None

    # Topics

    def ensure_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int,
        configs: Mapping[str, str],
        deadline: Deadline,
    ) -> None:
        """Create a compacted topic, unless there is one of this name, whatever it looks like.

        Args:
            topic: its name.
            partitions: our records go to partition 0.
            replication_factor: -1 for the cluster's default.
            configs: beside `cleanup.policy=compact`, and stronger than it.
            deadline: seconds left.

        Raises:
            Retriable: it is not there, and was not created.
        """
        # First a look: to create needs a right that an operator who created the topic himself need not give.
        if self._exists(topic, deadline):
            return
        config = {"cleanup.policy": "compact"} | dict(configs)
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor, config=config)
        client = self._admin.client()
        try:
            answer(client.create_topics([new], request_timeout=seconds_left(deadline))[topic], deadline)
        except KafkaException as exc:
            error = exc.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return  # a rival was faster
            self._admin.discard()
            raise Retriable(
                f"the cluster did not create {topic}: {error.str()} ({error.name()})",
                where=self._where,
                hint=_hint(error),
            ) from exc
        self._await(topic, deadline)

    def _exists(self, topic: str, deadline: Deadline) -> bool:
        # The client does not let a broker create what is only described (allow.auto.create.topics=false).
        with self._admin.asked(f"describe {topic}", self._where) as client:
            found = client.list_topics(topic, timeout=seconds_left(deadline)).topics.get(topic)
        if found is None or (found.error is not None and found.error.code() in _ABSENT):
            return False
        if found.error is not None and found.error.code() in DENIED:
            raise Retriable(
                f"the cluster does not show {topic}: {found.error.str()} ({found.error.name()})",
                where=self._where,
                hint="let this function Describe, Read and Write the topic",
            )
        return True

    def _await(self, topic: str, deadline: Deadline) -> None:
        """A new topic takes a moment to reach every broker's metadata."""
        while not self._exists(topic, deadline):
            if deadline() <= MARGIN_SECONDS:
                raise Retriable(f"{topic} did not appear in time", where=self._where)
            time.sleep(0.05)  # between two looks at a condition with a deadline

    # Writing

    def write(self, records: Sequence[InternalRecord], deadline: Deadline) -> None:
        """Write records to partition 0 of their topics, and wait for every acknowledgement.

        Raises:
            Retriable: naming the topic with a record that was not acknowledged. Which were written is unknown; all
                of them may be written again, for each replaces the one with its key.
        """
        by_topic: dict[str, list[Record]] = {}
        for topic, key, value, timestamp in records:
            by_topic.setdefault(topic, []).append(
                Record(offset=-1, timestamp=timestamp, headers=[], key=key, value=value)
            )
        for topic, each in by_topic.items():
            self.write_at((topic, 0), each, deadline)

    def write_at(self, place: TopicPartition, records: Sequence[Record], deadline: Deadline) -> None:
        """Write records to one partition, and wait for every acknowledgement. Raises: Retriable: as `write`."""
        writer = self._warm_writer(deadline)
        self._writer = None  # until it has done well
        refusal = writer.write({place: records}, deadline)[place].refusal
        if refusal is not None:
            raise Retriable(
                f"the cluster does not take record {refusal.index} of {len(records)}: {refusal.detail}",
                where=f"{self._where} {place[0]}",
                hint="look at the topic's max.message.bytes and cleanup.policy",
            )
        self._writer = writer

    def _warm_writer(self, deadline: Deadline) -> KafkaWriter:
        writer = self._writer
        idle = writer is not None and time.monotonic() - writer.used_at > PROBE_AFTER_SECONDS
        if writer is None or writer.suspect or (idle and not writer.answers(deadline)):
            config = client_config(self._cluster, self._client_id) | dict(_WRITER)
            writer = KafkaWriter(config, transactional_id="", deadline=deadline)
        return writer

    # Ends

    def ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, LogEnds]:
        """How far each partition's log reaches; one that does not exist, or is without a leader now, is left out.

        Raises:
            Retriable: the cluster answers about none of them, and not because they do not exist.
        """
        found, failures = self.found_ends(places, deadline)
        if failures and not found:
            raise Retriable(f"the cluster did not list where its logs end: {first_cause(failures)}", where=self._where)
        return found

    def found_ends(
        self, places: Iterable[TopicPartition], deadline: Deadline
    ) -> tuple[dict[TopicPartition, LogEnds], list[KafkaError]]:
        """The ends of the partitions that were answered for, and the errors of others that may exist."""
        wanted = list(dict.fromkeys(places))
        if not wanted:
            return {}, []
        answers, failures = self._admin.call_each(
            [(place, which) for place in wanted for which in range(len(_WANTED))],
            _list_offsets,
            deadline,
            chunk=PLACES * len(_WANTED),
        )
        errors = {place: error for (place, _), error in failures.items() if error.code() not in _ABSENT}
        # If no requested partition has a leader, the client does not say whether they exist.
        nameless = KafkaError._NOENT  # noqa: SLF001 -- its name
        if doubtful := [place for place, error in errors.items() if error.code() == nameless]:
            existing = self.partitions(deadline)
            for topic, partition in doubtful:
                count = existing.get(topic)
                if count is None or 0 < count <= partition:
                    del errors[topic, partition]
        found = {}
        for place in wanted:
            listed = [answers.get((place, which)) for which in range(len(_WANTED))]
            if None not in listed:
                start, stable, high = (each.offset for each in listed if each is not None)
                found[place] = (start, stable, high)
        return found, [error for place, error in errors.items() if place not in found]

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """How many partitions each topic has.

        Raises:
            Retriable: the cluster does not answer.
        """
        with self._admin.asked("list its topics", self._where) as client:
            topics = client.list_topics(timeout=seconds_left(deadline)).topics
        return {name: len(topic.partitions) for name, topic in topics.items()}


def _list_offsets(
    client: AdminClient, keys: list[tuple[TopicPartition, int]], seconds: float
) -> Mapping[tuple[TopicPartition, int], Future[Any]]:
    """One call for each kind of offset, all of them under way together."""
    futures: dict[tuple[TopicPartition, int], Future[Any]] = {}
    for which, (spec, isolation) in enumerate(_WANTED):
        places = {ClientPartition(*place): spec for place, kind in keys if kind == which}
        if places:
            answers = client.list_offsets(places, isolation_level=isolation, request_timeout=seconds)
            futures |= {((at.topic, at.partition), which): future for at, future in answers.items()}
    return futures


def _hint(error: KafkaError) -> str:
    if error.code() in DENIED:
        return "let this function Create the topic, or create it yourself: compacted, with one partition"
    if error.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        return "give this flow's internal topics a replication factor that the cluster has brokers for"
    return ""
