"""The look at the target that settles doubts: the records at some offsets of one topic, by one client of each kind."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mirrorless.adapters.kafka.client import MARGIN_SECONDS, client_config, seconds_left, translated
from mirrorless.errors import Retriable
from mirrorless.naming import LOOK_GROUP
from mirrorless.ports.kafka import Deadline, LookResult
from mirrorless.record import Record
from mirrorless.settings import ClusterSettings


class Witnesses:
    """One look at one topic of a cluster."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, topic: str) -> None:
        """Args: flow: part of the name that brokers log."""
        self._cluster = cluster
        self._flow = flow
        self._topic = topic

    def look(self, offsets: Mapping[int, int], deadline: Deadline) -> dict[int, Record | LookResult]:
        """See `Target.look`; a partition that does not exist, or has no leader, is left out.

        Raises:
            Retriable: the cluster does not answer.
        """
        from mirrorless.adapters.kafka.records import KafkaRecords  # noqa: PLC0415 -- kept out of every cold start

        logs = KafkaRecords(self._cluster, flow=self._flow, client_role="look-admin")
        found: dict[int, Record | LookResult] = {}
        readable: dict[int, int] = {}
        ends = logs.ends([(self._topic, partition) for partition in offsets], deadline)
        for (_, partition), (start, stable, end) in ends.items():
            offset = offsets[partition]
            if start <= offset < stable:
                readable[partition] = offset
            else:
                found[partition] = "expired" if offset < start else "ended" if offset >= end else "unsettled"
        found |= self._read(readable, "read_committed", deadline)
        # An aborted record is in the log, unless compaction removed it: then it may have been a committed one.
        unseen = {partition: offset for partition, offset in readable.items() if partition not in found}
        aborted = self._read(unseen, "read_uncommitted", deadline)
        return found | {partition: "absent" if partition in aborted else "expired" for partition in unseen}

    def _read(self, offsets: Mapping[int, int], isolation: str, deadline: Deadline) -> dict[int, Record]:
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
        found: dict[int, Record] = {}
        waiting = dict(offsets)
        with translated(f"show {self._topic}", self._cluster.alias):
            consumer = Consumer(config)
            try:
                consumer.assign([TopicPartition(self._topic, *place) for place in offsets.items()])
                while waiting and deadline() > MARGIN_SECONDS:
                    seen = consumer.poll(min(1.0, seconds_left(deadline)))
                    partition = None if seen is None else seen.partition()
                    if seen is None or partition not in waiting:
                        continue
                    error = seen.error()
                    # At the stable end nothing visible is left in between.
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its name
                        raise KafkaException(error)
                    if error is None and seen.offset() == waiting[partition]:
                        found[partition] = _record(seen)
                    del waiting[partition]
                    consumer.incremental_unassign([TopicPartition(self._topic, partition)])
            finally:
                consumer.close()
        if waiting:
            partition, offset = next(iter(waiting.items()))
            raise Retriable(f"the target showed nothing at {self._topic}-{partition} @ {offset} in time")
        return found


def _record(seen: Message) -> Record:
    _, timestamp = seen.timestamp()
    return Record(
        offset=seen.offset() or 0,
        timestamp=timestamp,
        headers=list(seen.headers() or []),  # type: ignore[arg-type]  # read back as bytes or None
        key=seen.key(),
        value=seen.value(),
    )
