"""One topic of one flow between two real clusters, replicated in this process: every step is in reach of the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from msgspec.structs import replace

from lab.esm.event import EventSource, encode_event, encode_record
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import Lane
from mirrorless.errors import Retriable
from mirrorless.flow.settings import FlowSettings
from mirrorless.protocol import hooks
from mirrorless.protocol.event import decode_event
from mirrorless.protocol.hooks import Step
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from tests.support.readback import Seen, assert_mirrored, await_settled, messages_of, read_topic
from tests.support.topics import admin_of, create_topic
from tests.support.waiting import eventually

QUIET = {"log_level": 0}
ORDERED = {"max.in.flight": 1, **QUIET}
"""Of producers: a topic made a moment ago may refuse the first batch once, which is then written after the second."""


@dataclass(slots=True, kw_only=True)
class LaneStage:
    """A source topic of this test alone, its stores, and environments by demand."""

    topic: str
    settings: FlowSettings
    source: KafkaCluster
    target: KafkaCluster
    chains: DynamoDbChains
    orders: DynamoDbLaneOrders
    ledger: DynamoDbLossLedger
    checkpoints: DynamoDbDocuments
    wire: Callable[[FlowSettings], Replicator]
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        """Open the producer of the source's records."""
        self._producer = Producer(
            {"bootstrap.servers": self.source.bootstrap, "message.max.bytes": 30_000_000, **ORDERED}
        )

    @classmethod
    def of(
        cls,
        settings: FlowSettings,
        clusters: Sequence[KafkaCluster],
        dynamodb: Any,
        wire: Callable[[FlowSettings], Replicator],
    ) -> Self:
        """A flow with a topic name of its own; the topic is not there yet. Args: dynamodb: a client."""
        source, target = clusters
        tables = settings.tables
        return cls(
            topic=f"orders-{uuid4().hex[:8]}",
            settings=settings,
            source=source,
            target=target,
            chains=DynamoDbChains(dynamodb, tables.offset_map),
            orders=DynamoDbLaneOrders(dynamodb, tables.lanes),
            ledger=DynamoDbLossLedger(dynamodb, tables.loss_ledger),
            checkpoints=DynamoDbDocuments(dynamodb, tables.checkpoints),
            wire=wire,
        )

    @property
    def remote_topic(self) -> str:
        """The topic's name on the target."""
        return self.settings.remote_topic(self.topic)

    def lane(self, partition: int = 0) -> Lane:
        """One of the topic's lanes."""
        return Lane(self.settings.name, self.topic, partition)

    # The source

    def create(self, cluster: KafkaCluster, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; underscores in config names are dots."""
        create_topic(cluster.bootstrap, topic, partitions, **configs)

    def delete(self, cluster: KafkaCluster, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        admin = admin_of(cluster.bootstrap)
        admin.delete_topics([topic])[topic].result(20)
        eventually(lambda: topic not in admin.list_topics(timeout=5).topics, "the deletion")

    def configure(self, cluster: KafkaCluster, topic: str, **configs: str) -> None:
        """Change the configuration of a topic; underscores in names are dots."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin_of(cluster.bootstrap).incremental_alter_configs([resource])[resource].result(20)

    def configs(self, topic: str) -> Mapping[str, str]:
        """What a topic of the target overrides."""
        admin = admin_of(self.target.bootstrap)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described = admin.describe_configs([resource])[resource].result(20)
        return {name: entry.value for name, entry in described.items() if not entry.is_default}

    def write(self, *values: bytes | None, partition: int = 0, **options: Any) -> None:
        """Write records to the source; `options` are those of `Producer.produce`, the key is `k` by default."""
        self.write_to(self.source, self.topic, *values, partition=partition, **options)

    def write_to(self, cluster: KafkaCluster, topic: str, *values: bytes | None, **options: Any) -> None:
        """Write records to a topic of either cluster."""
        own = cluster is self.source
        producer = self._producer if own else Producer({"bootstrap.servers": cluster.bootstrap, **ORDERED})
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for value in values:
            producer.produce(topic, value, on_delivery=delivered, **{"key": b"k"} | options)
        assert producer.flush(20) == 0
        assert not failed

    # Events

    def event(self, **offsets: Sequence[int] | None) -> bytes:
        """The JSON of a batch, as `p0=[1, 2]`, or `p0=None` for all of a partition; all of all by default."""
        messages = [
            message
            for partition, found in messages_of(self.source.bootstrap, self.topic).items()
            if not offsets or f"p{partition}" in offsets
            for message in found
            if offsets.get(f"p{partition}") is None or message.offset() in (offsets[f"p{partition}"] or ())
        ]
        source = EventSource(topic=self.topic, bootstrap_servers=self.source.bootstrap)
        return encode_event(source, [encode_record(message) for message in messages])  # type: ignore[arg-type]  # read back, its headers are a list

    def environment(self, **changes: Any) -> Replicator:
        """A fresh execution environment's replicator; `changes` are of its settings."""
        return self.wire(self.changed(**changes))

    def changed(self, **changes: Any) -> FlowSettings:
        """The stage's settings with these changes."""
        return replace(self.settings, **changes)

    def replicate(self, environment: Replicator, event: bytes, *, seconds: float = 15.0) -> BatchOutcome:
        """One invocation."""
        end = time.monotonic() + seconds
        return environment.replicate(decode_event(event), request="test", deadline=lambda: end - time.monotonic())

    def deliver(self, event: bytes, environment: Replicator | None = None) -> BatchOutcome:
        """Deliver as the mapping does, until it is taken; each time to a fresh environment, unless to this one."""
        end = time.monotonic() + 60
        while True:
            try:
                return self.replicate(environment or self.environment(), event)
            except Retriable:
                assert time.monotonic() < end
                time.sleep(0.2)  # between two deliveries with a deadline

    # The target

    def on_target(self) -> dict[int, list[Seen]]:
        """What readers see, once nothing is open."""
        await_settled(self.target.bootstrap, self.remote_topic)
        return read_topic(self.target.bootstrap, self.remote_topic)

    def values(self, partition: int = 0) -> list[bytes | None]:
        """The visible values of one partition of the target."""
        return [each.content.value for each in self.on_target()[partition]]

    def assert_mirrored(self) -> None:
        """Every lane is on the target byte for byte, once, in order, and the map has its place."""
        source, target = read_topic(self.source.bootstrap, self.topic), self.on_target()
        assert source.keys() == target.keys()
        for partition, expected in source.items():
            assert_mirrored(self.lane(partition), self.chains, expected, target[partition])


@contextmanager
def at_step(step: Step, act: Callable[[], None]) -> Iterator[None]:
    """Do something once when the protocol reaches this step; what it raises passes through the protocol."""
    done: list[Step] = []

    def observer(reached: Step) -> None:
        if reached == step and not done:
            done.append(reached)
            act()

    hooks.observers.append(observer)
    try:
        yield
    finally:
        hooks.observers.remove(observer)
    assert done, f"{step} was not reached"


def numbered(*numbers: int) -> list[bytes]:
    """Values of records."""
    return [b"%d" % number for number in numbers]


class Crash(BaseException):
    """Raised at a step: the environment is gone."""


def crash() -> None:
    """Be gone."""
    raise Crash
