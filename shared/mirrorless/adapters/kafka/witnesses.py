"""The look at the target that settles doubts: the records at some offsets, by one client of each kind."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from mirrorless.adapters.kafka.client import MARGIN_SECONDS, client_config, translated, wait_left
from mirrorless.adapters.kafka.messages import record_of
from mirrorless.errors import Retriable
from mirrorless.naming import LOOK_GROUP
from mirrorless.ports.kafka import Deadline, LookResult, TopicPartition
from mirrorless.record import Record
from mirrorless.settings import ClusterSettings


class Witnesses:
    """One look at a cluster."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of the name that brokers log."""
        self._cluster = cluster
        self._flow = flow

    def look(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, Record | LookResult]:
        """See `Target.look`; a partition that does not exist, or has no leader, is left out.

        Raises:
            Retriable: the cluster does not answer.
        """
        from mirrorless.adapters.kafka.records import KafkaRecords  # noqa: PLC0415 -- kept out of every cold start

        logs = KafkaRecords(self._cluster, flow=self._flow, client_role="look-admin")
        found: dict[TopicPartition, Record | LookResult] = {}
        readable: dict[TopicPartition, int] = {}
        for place, (start, stable, end) in logs.ends(offsets, deadline).items():
            offset = offsets[place]
            if start <= offset < stable:
                readable[place] = offset
            else:
                found[place] = "expired" if offset < start else "ended" if offset >= end else "unsettled"
        found |= self._read(readable, "read_committed", deadline)
        # An aborted record is in the log, unless compaction removed it: then it may have been a committed one.
        unseen = {place: offset for place, offset in readable.items() if place not in found}
        aborted = self._read(unseen, "read_uncommitted", deadline)
        return found | {place: "absent" if place in aborted else "expired" for place in unseen}

    def _read(
        self, offsets: Mapping[TopicPartition, int], isolation: str, deadline: Deadline
    ) -> dict[TopicPartition, Record]:
        """The records at exactly these offsets, below the stable end; what readers do not see is left out."""
        if not offsets:
            return {}
        config = client_config(self._cluster, f"{self._flow}|look") | {
            "group.id": LOOK_GROUP,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,  # at the stable end there is nothing to wait for
        }
        found: dict[TopicPartition, Record] = {}
        waiting = dict(offsets)
        with translated("show records", self._cluster.alias):
            consumer = Consumer(config)
            try:
                consumer.assign([ClientPartition(*place, offset) for place, offset in offsets.items()])
                while waiting and deadline() > MARGIN_SECONDS:
                    seen = consumer.poll(min(1.0, wait_left(deadline)))
                    place = None if seen is None else (seen.topic() or "", seen.partition() or 0)
                    if seen is None or place not in waiting:
                        continue
                    error = seen.error()
                    # At the stable end nothing visible is left in between.
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
                        raise KafkaException(error)
                    if error is None and seen.offset() == waiting[place]:
                        found[place] = record_of(seen)
                    del waiting[place]
                    consumer.incremental_unassign([ClientPartition(*place)])
            finally:
                consumer.close()
        if waiting:
            (topic, partition), offset = next(iter(waiting.items()))
            raise Retriable(f"the target showed nothing at {topic}-{partition} @ {offset} in time")
        return found
