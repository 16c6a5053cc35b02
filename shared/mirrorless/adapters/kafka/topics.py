"""One cluster's topics, many at a time: list, describe configs, create, add partitions, alter configs.

A thousand topics cost a few calls. Failures of one topic are reported for that topic; those of the cluster raise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.admin import ConfigEntry as DescribedEntry

from mirrorless.adapters.kafka.admin import Call, WarmAdmin, first_cause, offsets_call
from mirrorless.adapters.kafka.client import answer, seconds_left
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.topics import ConfigChange, ConfigEntry, Failures, NewRemoteTopic

BATCH: Final = 250
"""Topics in one call, so that no answer grows beyond some megabytes."""

PLACES: Final = 10_000
"""Partitions in one call."""

READ_SECONDS: Final = 10.0
"""How long one call is waited for: a partition without a leader keeps the others waiting."""

_DOWN: Final = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 -- the client's public constants look so
        KafkaError._TRANSPORT,  # noqa: SLF001 -- same
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 -- same
    }
)
"""What is wrong with the cluster, and not with the topic itself."""

_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as its cluster describes it."""

    partitions: int
    topic_id: str
    """Given at creation, and never again: a topic that was deleted and created once more has another one."""


class KafkaTopics:
    """Implements `mirrorless.ports.topics.SourceTopics` and `TargetTopics` on one cluster."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, role: str) -> None:
        """Args: flow, role: what the client calls itself in the brokers' logs."""
        self._admin = WarmAdmin(cluster, f"{flow}|{role}")
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """See `SourceTopics.partitions`."""
        with self._admin.asked("list its topics", self._where) as client:
            topics = client.list_topics(timeout=seconds_left(deadline)).topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def topics(self, deadline: Deadline) -> dict[str, TopicDescription]:
        """Every topic with its id."""
        counts = self.partitions(deadline)
        ids = self.topic_ids(counts, deadline)
        return {name: TopicDescription(counts[name], topic_id) for name, topic_id in ids.items()}

    def topic_ids(self, names: Iterable[str], deadline: Deadline) -> dict[str, str]:
        """See `SourceTopics.topic_ids`."""

        def call(client: AdminClient, some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            return client.describe_topics(TopicCollection(some), request_timeout=seconds)

        described, _ = self._read("describe its topics", sorted(names), call, deadline)
        return {name: str(topic.topic_id) for name, topic in described.items()}

    def configs(self, names: Iterable[str], deadline: Deadline) -> tuple[dict[str, list[ConfigEntry]], Failures]:
        """See `SourceTopics.configs`."""

        def call(client: AdminClient, some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in some]
            futures = client.describe_configs(resources, request_timeout=seconds)
            return {str(resource.name): future for resource, future in futures.items()}

        described, failures = self._read("describe its topics' configs", sorted(names), call, deadline)
        return {name: [config_entry(each) for each in entries.values()] for name, entries in described.items()}, {
            name: _message(error) for name, error in failures.items()
        }

    def ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `SourceTopics.ends`."""
        return self._offsets(places, OffsetSpec.latest(), deadline)  # type: ignore[no-untyped-call]  # theirs

    def starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `SourceTopics.starts`."""
        return self._offsets(places, OffsetSpec.earliest(), deadline)  # type: ignore[no-untyped-call]  # theirs

    def offsets_at(
        self, places: Iterable[TopicPartition], timestamp: int, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """See `SourceTopics.offsets_at`."""
        return self._offsets(places, OffsetSpec.for_timestamp(timestamp), deadline)

    def create(
        self, topics: Sequence[NewRemoteTopic], deadline: Deadline, *, validate_only: bool = False
    ) -> dict[str, str | None]:
        """See `TargetTopics.create`."""
        news = {
            topic.name: NewTopic(topic.name, topic.partitions, topic.replication_factor, config=dict(topic.configs))
            for topic in topics
        }

        def call(client: AdminClient, some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            return client.create_topics(
                [news[name] for name in some], request_timeout=seconds, validate_only=validate_only
            )

        return self._write("create topics", news, call, deadline, done_already=KafkaError.TOPIC_ALREADY_EXISTS)

    def grow(self, counts: Mapping[str, int], deadline: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.grow`."""

        def call(client: AdminClient, some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            wider = [NewPartitions(name, counts[name]) for name in some]
            return client.create_partitions(wider, request_timeout=seconds)

        return self._write("grow topics", counts, call, deadline, done_already=KafkaError.INVALID_PARTITIONS)

    def alter_configs(self, changes: Mapping[str, ConfigChange], deadline: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.alter_configs`."""

        def call(client: AdminClient, some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            resources = [
                ConfigResource(ResourceType.TOPIC, name, incremental_configs=_operations(changes[name]))
                for name in some
            ]
            futures = client.incremental_alter_configs(resources, request_timeout=seconds)
            return {str(resource.name): future for resource, future in futures.items()}

        return self._write("alter its topics' configs", changes, call, deadline)

    def _offsets(
        self, places: Iterable[TopicPartition], spec: OffsetSpec, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        # What was deleted meanwhile, or has no leader just now, is left out, and read again in the next round.
        found, _ = self._read("list its offsets", places, offsets_call(spec), deadline, batch=PLACES)
        return {place: int(each.offset) for place, each in found.items()}

    def _read(
        self, what: str, keys: Iterable[_K], call: Call[_K], deadline: Deadline, *, batch: int | None = None
    ) -> tuple[dict[_K, Any], dict[_K, KafkaError]]:
        """Answers and failures, by key.

        Raises:
            Retriable: the cluster does not answer.
        """

        def soon(client: AdminClient, some: list[_K], seconds: float) -> Mapping[_K, Future[Any]]:
            return call(client, some, min(seconds, READ_SECONDS))

        answers, failures = self._admin.call_each(keys, soon, deadline, chunk=batch or BATCH)
        if not answers:
            self._raise_if_down(what, failures.values())
        return answers, failures

    def _write(
        self,
        what: str,
        names: Iterable[str],
        call: Call[str],
        deadline: Deadline,
        *,
        done_already: int | None = None,
    ) -> dict[str, str | None]:
        """For each topic what went wrong, or None. A write is sent once: the next round sees what came of it.

        Raises:
            Retriable: the cluster does not answer.
        """
        wanted, outcomes = sorted(names), dict[str, str | None]()
        for start in range(0, len(wanted), BATCH):
            with self._admin.asked(what, self._where) as client:
                futures = call(client, wanted[start : start + BATCH], seconds_left(deadline))
            for name, future in futures.items():
                try:
                    answer(future, deadline)
                    outcomes[name] = None
                except KafkaException as exc:
                    error = exc.args[0]
                    self._raise_if_down(what, [error])
                    # A rival was faster: then it is done.
                    outcomes[name] = None if error.code() == done_already else _message(error)
        return outcomes

    def _raise_if_down(self, what: str, errors: Iterable[KafkaError]) -> None:
        if down := [error for error in errors if error.code() in _DOWN]:
            self._admin.discard()
            raise Retriable(f"the cluster did not {what}: {first_cause(down)}", where=self._where)


def config_entry(described: Any) -> ConfigEntry:
    """A config as the client describes it."""
    return ConfigEntry(
        name=described.name,
        value=described.value,
        is_override=described.source in {ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG.value},
        is_read_only=described.is_read_only,
        is_sensitive=described.is_sensitive,
    )


def _message(error: KafkaError) -> str:
    return f"{error.str()} ({error.name()})"


def _operations(change: ConfigChange) -> list[DescribedEntry]:
    return [
        *(
            DescribedEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in change.set.items()
        ),
        *(DescribedEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in change.delete),
    ]
