"""One cluster's topics, many at a time: what there are, how they are configured, and to create, grow and alter them.

A thousand topics cost a few calls. What fails for one topic is told for that topic; what fails for the cluster raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
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

from mirrorless.adapters.kafka_client import answer, client_config, seconds_left, translated
from mirrorless.errors import Retriable
from mirrorless.groups import Place
from mirrorless.remote_topic import ConfigEntry
from mirrorless.settings import ClusterSettings
from mirrorless.target import Deadline
from mirrorless.topic_configs import ConfigChange
from mirrorless.topics import NewRemoteTopic

BATCH: Final = 250
"""Topics in one call, so that no answer grows beyond some megabytes."""

_DOWN: Final = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 -- the client's public constants look so
        KafkaError._TRANSPORT,  # noqa: SLF001 -- same
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 -- same
    }
)
"""What is wrong with the cluster, and not with the topic that was asked for."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as its cluster knows it."""

    partitions: int
    topic_id: str
    """Given at creation, and never again: a topic that was deleted and created once more has another one."""


class KafkaTopics:
    """Implements `mirrorless.topics.SourceTopics` and `TargetTopics` on one cluster, with one client for its life."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, role: str) -> None:
        """Args: flow, role: what the client calls itself in the brokers' logs."""
        self._cluster = cluster
        self._client_id = f"{flow}|{role}"
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._client: AdminClient | None = None

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """See `SourceTopics.partitions`."""
        with translated("list its topics", self._where):
            topics = self._admin.list_topics(timeout=seconds_left(deadline)).topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def topics(self, deadline: Deadline) -> dict[str, TopicDescription]:
        """Every topic with its id."""
        counts = self.partitions(deadline)
        ids = self.topic_ids(counts, deadline)
        return {name: TopicDescription(counts[name], topic_id) for name, topic_id in ids.items()}

    def topic_ids(self, names: Iterable[str], deadline: Deadline) -> dict[str, str]:
        """See `SourceTopics.topic_ids`."""
        described, _ = self._for_each(
            "describe its topics",
            names,
            lambda batch, timeout: self._admin.describe_topics(TopicCollection(batch), request_timeout=timeout),
            lambda name: name,
            deadline,
        )
        return {name: str(topic.topic_id) for name, topic in described.items()}

    def configs(self, names: Iterable[str], deadline: Deadline) -> tuple[dict[str, list[ConfigEntry]], dict[str, str]]:
        """See `SourceTopics.configs`."""

        def ask(batch: list[str], timeout: float) -> Mapping[ConfigResource, Future[Any]]:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in batch]
            return self._admin.describe_configs(resources, request_timeout=timeout)

        described, failures = self._for_each(
            "describe its topics' configs", names, ask, lambda resource: str(resource.name), deadline
        )
        return {
            name: [config_entry(each) for each in entries.values()] for name, entries in described.items()
        }, failures

    def ends(self, places: Iterable[Place], deadline: Deadline) -> dict[Place, int]:
        """See `SourceTopics.ends`."""
        return self._offsets(places, OffsetSpec.latest(), deadline)  # type: ignore[no-untyped-call]  # theirs

    def offsets_at(self, places: Iterable[Place], timestamp: int, deadline: Deadline) -> dict[Place, int]:
        """See `SourceTopics.offsets_at`."""
        return self._offsets(places, OffsetSpec.for_timestamp(timestamp), deadline)

    def create(self, topics: Sequence[NewRemoteTopic], deadline: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.create`."""
        news = {
            topic.name: NewTopic(topic.name, topic.partitions, topic.replication_factor, config=dict(topic.configs))
            for topic in topics
        }
        return self._change(
            "create topics",
            news,
            lambda batch, timeout: self._admin.create_topics([news[name] for name in batch], request_timeout=timeout),
            KafkaError.TOPIC_ALREADY_EXISTS,
            deadline,
        )

    def grow(self, counts: Mapping[str, int], deadline: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.grow`."""
        return self._change(
            "grow topics",
            counts,
            lambda batch, timeout: self._admin.create_partitions(
                [NewPartitions(name, counts[name]) for name in batch], request_timeout=timeout
            ),
            KafkaError.INVALID_PARTITIONS,
            deadline,
        )

    def alter_configs(self, changes: Mapping[str, ConfigChange], deadline: Deadline) -> dict[str, str | None]:
        """See `TargetTopics.alter_configs`."""

        def ask(batch: list[str], timeout: float) -> Mapping[ConfigResource, Future[Any]]:
            resources = [
                ConfigResource(ResourceType.TOPIC, name, incremental_configs=_operations(changes[name]))
                for name in batch
            ]
            return self._admin.incremental_alter_configs(resources, request_timeout=timeout)

        _, failures = self._for_each(
            "alter its topics' configs", changes, ask, lambda resource: str(resource.name), deadline
        )
        return {name: failures.get(name) for name in changes}

    def _change(
        self,
        what: str,
        names: Iterable[str],
        ask: Callable[[list[str], float], Mapping[str, Future[Any]]],
        done_already: int,
        deadline: Deadline,
    ) -> dict[str, str | None]:
        names = list(names)
        _, failures = self._for_each(what, names, ask, lambda name: name, deadline, done_already=done_already)
        return {name: failures.get(name) for name in names}

    def _for_each(
        self,
        what: str,
        names: Iterable[str],
        ask: Callable[[list[str], float], Mapping[_T, Future[Any]]],
        name_of: Callable[[_T], str],
        deadline: Deadline,
        *,
        done_already: int | None = None,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Answers and failures by topic name, from one call per batch.

        Raises:
            Retriable: the cluster does not answer.
        """
        answers: dict[str, Any] = {}
        failures: dict[str, str] = {}
        for batch in _batches(names):
            with translated(what, self._where):
                futures = ask(batch, seconds_left(deadline))
            for key, future in futures.items():
                try:
                    answers[name_of(key)] = answer(future, deadline)
                except KafkaException as exc:
                    error = exc.args[0]
                    if error.code() in _DOWN:
                        raise Retriable(f"the cluster did not {what}: {error.str()}", where=self._where) from exc
                    if error.code() != done_already:  # a rival was faster: then it is done
                        failures[name_of(key)] = f"{error.str()} ({error.name()})"
        return answers, failures

    def _offsets(self, places: Iterable[Place], spec: OffsetSpec, deadline: Deadline) -> dict[Place, int]:
        wanted = {TopicPartition(topic, partition): spec for topic, partition in places}
        if not wanted:
            return {}
        with translated("tell its offsets", self._where):
            futures = self._admin.list_offsets(wanted, request_timeout=seconds_left(deadline))
        offsets = {}
        for place, future in futures.items():
            try:
                offsets[place.topic, place.partition] = int(answer(future, deadline).offset)
            except KafkaException as exc:
                error = exc.args[0]
                if error.code() in _DOWN:
                    raise Retriable(f"the cluster did not tell its offsets: {error.str()}", where=self._where) from exc
                # Deleted meanwhile, or without a leader just now: left out, and asked again in the next round.
        return offsets

    @property
    def _admin(self) -> AdminClient:
        """Kept, so that it outlives the futures of its calls."""
        if self._client is None:
            self._client = AdminClient(client_config(self._cluster, self._client_id))
        return self._client


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    names = sorted(names)
    for start in range(0, len(names), BATCH):
        yield names[start : start + BATCH]


def config_entry(described: Any) -> ConfigEntry:
    """A config as the client describes it."""
    return ConfigEntry(
        name=described.name,
        value=described.value,
        is_override=described.source in {ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG.value},
        is_read_only=described.is_read_only,
        is_sensitive=described.is_sensitive,
    )


def _operations(change: ConfigChange) -> list[DescribedEntry]:
    return [
        *(
            DescribedEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in change.set.items()
        ),
        *(DescribedEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in change.delete),
    ]
