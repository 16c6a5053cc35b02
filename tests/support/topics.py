"""Topics that are there for whoever asks next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from uuid import uuid4

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.support.waiting import eventually


@cache
def admin_of(bootstrap: str) -> AdminClient:
    """One for all tests: a new client takes half a second to find its cluster."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topic(bootstrap: str, topic: str, partitions: int = 1, replicas: int = 1, /, **configs: str) -> str:
    """Create a topic, and wait for its leaders; underscores in config names are dots. Returns its name.

    A broker learns of it after the controller has answered, a busy one by seconds.
    """
    admin = admin_of(bootstrap)
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create_topics([NewTopic(topic, partitions, replicas, config=named)])[topic].result(20)

    def led() -> bool:
        shown = admin.list_topics(topic, timeout=5).topics[topic].partitions
        return len(shown) == partitions and all(each.leader >= 0 for each in shown.values())

    eventually(led, f"{topic} is shown with its leaders")
    return topic


@contextmanager
def broker_default(bootstrap: str, **config: str) -> Iterator[None]:
    """A default of the first broker, set while it runs and inside the block; underscores in its name are dots."""
    ((name, value),) = config.items()

    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name.replace("_", "."), value, incremental_operation=operation)
        broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin_of(bootstrap).incremental_alter_configs([broker])[broker].result(20)

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


def delete_before(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """Let a partition begin at an offset, as retention does."""
    deleted = admin_of(bootstrap).delete_records([TopicPartition(topic, partition, offset)], request_timeout=20)
    for each in deleted.values():
        each.result(20)


def transactional(bootstrap: str, **options: str | int) -> Producer:
    """A producer that is ready for its first transaction; underscores in options are dots."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid4().hex, "log_level": 0} | named)
    producer.init_transactions(30)
    return producer


def begin_transaction(
    producer: Producer, topic: str, *values: bytes, partition: int = 0, key: bytes | None = b"k"
) -> None:
    """Write records that no reader sees yet."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key, partition)
    assert producer.flush(20) == 0


def transaction(
    producer: Producer,
    topic: str,
    *values: bytes,
    partition: int = 0,
    key: bytes | None = b"k",
    commit: bool = True,
) -> None:
    """Write records, and commit or abort them."""
    begin_transaction(producer, topic, *values, partition=partition, key=key)
    (producer.commit_transaction if commit else producer.abort_transaction)(20)
