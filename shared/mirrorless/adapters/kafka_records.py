"""Small internal topics of one cluster: made when they are missing, written to, and read whole; and where logs end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from mirrorless.adapters.kafka_admin import WarmAdmin, first_cause
from mirrorless.adapters.kafka_client import MARGIN_SECONDS, answer, client_config, seconds_left, translated
from mirrorless.errors import Retriable
from mirrorless.groups import Place
from mirrorless.settings import ClusterSettings
from mirrorless.target import Deadline

InternalRecord = tuple[str, bytes, bytes, int]
"""Topic, key, value, timestamp in ms."""

PLACES: Final = 10_000
"""Partitions in one call."""


class KafkaRecords:
    """Implements `mirrorless.internal_topics.InternalTopics`, and tells the ends of logs."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, client_role: str) -> None:
        """Args: flow, client_role: what the clients call themselves in the brokers' logs."""
        self._cluster = cluster
        self._client_id = f"{flow}|{client_role}"
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._admin = WarmAdmin(cluster, self._client_id)
        self._producer: Producer | None = None

    def ensure_topic(
        self,
        topic: str,
        *,
        replication_factor: int,
        configs: Mapping[str, str],
        deadline: Deadline,
        partitions: int = 1,
    ) -> None:
        """Create a topic; one that is there stays as it is.

        Raises:
            Retriable: the cluster does not answer, or refuses.
        """
        new = NewTopic(topic, partitions, replication_factor, config=dict(configs))
        admin = self._admin.client()
        try:
            answer(admin.create_topics([new], request_timeout=seconds_left(deadline))[topic], deadline)
        except KafkaException as exc:
            error = exc.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            self._admin.discard()
            raise Retriable(
                f"the cluster did not create {topic}: {error.str()} ({error.name()})",
                where=self._where,
                hint="let the function create topics there and check the replication factor, or create it yourself: "
                f"{partitions} partition, cleanup.policy=compact",
            ) from exc

    def write(self, records: Sequence[InternalRecord], deadline: Deadline) -> None:
        """Write records to partition 0 of their topics, in order; returns when each is acknowledged.

        Raises:
            Retriable: not all were; the text names the first topic that failed. They may be written again.
        """
        failed: list[tuple[str, KafkaError]] = []

        def on_delivery(error: KafkaError | None, record: Message) -> None:
            if error is not None:
                failed.append((record.topic() or "", error))

        producer, self._producer = self._producer or self._open(), None  # kept again once nothing has failed
        with translated("take internal records", self._where):
            for topic, key, value, timestamp in records:
                producer.produce(topic, value, key, 0, on_delivery=on_delivery, timestamp=timestamp)
            waiting = producer.flush(seconds_left(deadline))
        if failed:
            topic, error = failed[0]
            raise Retriable(
                f"{topic} did not take {len(failed)} of {len(records)} records: {error.str()} ({error.name()})",
                where=self._where,
                hint="check that the function may write there",
            )
        if waiting:
            raise Retriable(f"{waiting} of {len(records)} records were not acknowledged in time", where=self._where)
        self._producer = producer

    def read_all(self, topic: str, deadline: Deadline) -> list[tuple[bytes, bytes]]:
        """Key and value of every record of partition 0, in order; none where the topic does not exist.

        Raises:
            Retriable: the cluster does not answer in time.
        """
        found = self.ends([(topic, 0)], deadline).get((topic, 0))
        if found is None:
            return []
        start, end, _ = found
        consumer = Consumer(
            client_config(self._cluster, self._client_id)
            | {
                "group.id": "mirrorless-internal-topics",  # the client wants one; nothing is ever committed to it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        read: list[tuple[bytes, bytes]] = []
        try:
            consumer.assign([TopicPartition(topic, 0, start)])
            while start < end and deadline() > MARGIN_SECONDS:
                for record in consumer.consume(500, min(1.0, seconds_left(deadline))):
                    error = record.error()
                    if error is None:
                        read.append((record.key() or b"", record.value() or b""))
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
                        return read
                    else:
                        raise Retriable(f"{topic} cannot be read: {error.str()}", where=self._where)
        finally:
            consumer.close()
        if start < end:
            raise Retriable(f"the end of {topic} was not reached in time", where=self._where)
        return read

    def ends(self, places: Iterable[Place], deadline: Deadline) -> dict[Place, tuple[int, int, int]]:
        """Log start, last stable offset and high watermark of each partition; those that do not exist are left out.

        Raises:
            Retriable: the cluster tells of none of them.
        """
        wanted = sorted(set(places))
        bounds = []
        for spec, level in (
            (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),  # type: ignore[no-untyped-call]  # theirs
            # The stable end first: what is committed in between is then above it, and never below.
            (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),  # type: ignore[no-untyped-call]  # theirs
            (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),  # type: ignore[no-untyped-call]  # theirs
        ):
            bounds.append(self._list(wanted, spec, level, deadline))
        starts, stable, high = bounds
        return {
            place: (starts[place], stable[place], high[place])
            for place in wanted
            if place in starts and place in stable and place in high
        }

    def _list(
        self, places: list[Place], spec: OffsetSpec, level: IsolationLevel, deadline: Deadline
    ) -> dict[Place, int]:
        def ask(admin: AdminClient, some: list[Place], seconds: float) -> dict[Place, Any]:
            request = {TopicPartition(*place): spec for place in some}
            futures = admin.list_offsets(request, isolation_level=level, request_timeout=seconds)
            return {(at.topic, at.partition): future for at, future in futures.items()}

        answers, failures = self._admin.ask_each(places, ask, deadline, chunk=PLACES)
        if failures and not answers and not _absent(failures.values()):
            raise Retriable(
                f"the cluster did not tell where logs end: {first_cause(failures.values())}", where=self._where
            )
        return {place: told.offset for place, told in answers.items()}

    def _open(self) -> Producer:
        config = client_config(self._cluster, self._client_id) | {
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "message.timeout.ms": 10_000,
        }
        with translated("open a producer", self._where):
            return Producer(config)


def _absent(errors: Iterable[KafkaError]) -> bool:
    """Whether the only trouble is that the partitions do not exist."""
    missing = {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 -- the client's public constants look so
        KafkaError._NOENT,  # noqa: SLF001 -- same
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 -- same
    }
    return all(error.code() in missing for error in errors)
