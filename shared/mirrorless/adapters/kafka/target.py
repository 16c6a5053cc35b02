"""The target cluster: warm writers, fencing, and the look that settles a doubt."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from mirrorless.adapters.kafka.client import MARGIN_SECONDS, client_config
from mirrorless.adapters.kafka.delivery_reports import Watch
from mirrorless.adapters.kafka.writer import BATCH_BYTES, KafkaWriter
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.naming import transactional_id
from mirrorless.flow.settings import ClusterSettings, FlowSettings
from mirrorless.ports.kafka import PORTION, LookResult, Refusal, TopicPartition
from mirrorless.ports.topics import NewRemoteTopic
from mirrorless.records.record import Record


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
        found |= self._read(readable, deadline, committed=True)
        # An aborted record is in the log, unless compaction removed it: then it may have been a committed one.
        unseen = {place: offset for place, offset in readable.items() if place not in found}
        aborted = self._read(unseen, deadline, committed=False)
        return found | {place: "absent" if place in aborted else "expired" for place in unseen}

    def _read(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline, *, committed: bool
    ) -> dict[TopicPartition, Record]:
        """The records at exactly these offsets, below the stable end; what readers do not see is left out."""
        from mirrorless.adapters.kafka.log import WITNESS, KafkaLog, uncommitted  # noqa: PLC0415 -- kept out of every cold start
        from mirrorless.adapters.kafka.log_ranges import read_ranges  # noqa: PLC0415 -- same

        if not offsets:
            return {}
        found: dict[TopicPartition, Record] = {}
        waiting = set(offsets)
        tuning = WITNESS if committed else uncommitted(WITNESS)
        with closing(KafkaLog(self._cluster, flow=self._flow, tuning=tuning)) as log:
            wanted = {place: [(offset, offset + 1)] for place, offset in offsets.items()}
            for part in read_ranges(log, wanted, lambda: deadline() - MARGIN_SECONDS):
                topic, partition = part.place
                if part.failure is not None:
                    raise Retriable(part.failure.what, where=f"{self._cluster.alias} {topic}-{partition}")
                if part.log_start:
                    raise Retriable(f"the log of {topic}-{partition} begins above what was asked for")
                for record in part.records:
                    found[part.place] = record
                if part.over:
                    waiting.discard(part.place)
        if waiting:
            topic, partition = min(waiting)
            raise Retriable(f"the target showed nothing at {topic}-{partition} @ {offsets[topic, partition]} in time")
        return found


PROBE_AFTER_SECONDS: Final = 300
"""A writer idle for longer is probed first: brokers close idle connections after 10 minutes."""

_ANY_RECORD: Final = "INVALID_RECORD"
"""librdkafka's one error for a record that a broker names, whatever the broker has against it."""

LEAST_BATCH_BYTES: Final = 50_000
"""Of the ordinary writer, however small the topic's limit is: the 90 requests of a whole event then end before the
transaction times out, also at a delay of 100 ms. Where even this is refused, each event goes in portions."""


class KafkaTarget:
    """Implements `mirrorless.ports.kafka.Target`. Holds at most one warm writer of each kind."""

    def __init__(self, settings: FlowSettings, *, environment: str) -> None:
        """Args: environment: unique to this execution environment; part of its transactional id."""
        self._settings = settings
        self._environment = environment
        self._writer: KafkaWriter | None = None
        self._careful: KafkaWriter | None = None
        self._careful_batches: dict[str, Any] = {}
        self._codec: dict[str, Any] = {}
        self._batch_bytes = self._usual_batch_bytes = int(settings.producer.get("batch.size", BATCH_BYTES))
        # Outlives its writers: the next writer examines every report of a lane whose reports left offsets open.
        self._watch = Watch()

    # Writers

    def writer(self, deadline: Deadline) -> KafkaWriter:
        """See `Target.writer`."""
        self._writer = self._warm(self._writer, deadline) or self._open(
            self._id(""), self._batches(LEAST_BATCH_BYTES), deadline, watch=self._watch
        )
        return self._writer

    def careful_writer(self, batch_records: int, deadline: Deadline, *, codec: str = "") -> KafkaWriter:
        """See `Target.careful_writer`."""
        batches = {"batch.num.messages": batch_records, "max.in.flight": 1} | self._batches(0)
        if codec:
            batches["compression.type"] = codec
        if batches != self._careful_batches:
            self._careful, self._careful_batches = None, batches
        self._careful = self._warm(self._careful, deadline) or self._open(
            self._id(".careful"), batches, deadline, portion=PORTION
        )
        return self._careful

    def limit_batches(self, refused_bytes: int) -> None:
        """See `Target.limit_batches`. The topic's own limit would need a right that nothing else does."""
        self._batch_bytes = max(1, min(self._batch_bytes, refused_bytes) // 2)

    def prefer(self, codec: str) -> None:
        """See `Target.prefer`. The next ordinary writer does: whose record is refused is not used again."""
        self._codec = {"compression.type": codec}

    def explained(
        self, place: TopicPartition, records: Sequence[Record], refusal: Refusal, deadline: Deadline
    ) -> Refusal:
        """See `Target.explained`.

        The Kafka client gives one error for whatever a broker finds in a record, and not the broker's words. So the
        same records are written by the protocol of our own, in a transaction that is aborted.
        """
        if refusal.cause != _ANY_RECORD or not self._id(""):
            return refusal
        from mirrorless.adapters.kafka.wire.raw_writer import RawWriter  # noqa: PLC0415 -- rarely needed
        from mirrorless.records.batch_records import packed  # noqa: PLC0415 -- same

        batches = list(packed(records, "lz4", max_bytes=self._batch_bytes))
        try:
            writer = RawWriter(
                self._settings.target,
                flow=self._settings.flow,
                transactional_id=self._id(".explained"),
                timeout_ms=self._settings.transaction_timeout_ms,
                deadline=deadline,
            )
        except Retriable:
            return refusal
        try:
            found = writer.write({place: batches}, deadline)[place].refusal
            writer.abort(deadline)
        except Retriable:
            return refusal
        finally:
            writer.close()
        if found is None:
            return refusal
        before = sum(batch.records_count for batch in batches[: found.index])
        return replace(found, index=refusal.index, records=[before + each for each in found.records])

    def _batches(self, least: int) -> dict[str, Any]:
        size = max(self._batch_bytes, least)
        return self._codec | ({"batch.size": size} if size < self._usual_batch_bytes else {})

    def discard_writers(self) -> None:
        """See `Target.discard_writers`."""
        self._writer = self._careful = None

    def fence(self, transactional_id: str, deadline: Deadline) -> None:
        """See `Target.fence`. Opening a producer with the same id is Kafka's way to fence one."""
        if self._writer is not None and transactional_id == self._writer.transactional_id:
            self._writer = None
        if self._careful is not None and transactional_id == self._careful.transactional_id:
            self._careful = None
        if transactional_id:
            self._open(transactional_id, {}, deadline)

    def _id(self, suffix: str) -> str:
        if self._settings.delivery == "at_least_once":
            return ""
        return transactional_id(self._settings.name, f"{self._environment}{suffix}")

    @staticmethod
    def _warm(writer: KafkaWriter | None, deadline: Deadline) -> KafkaWriter | None:
        if writer is None or writer.suspect:
            return None
        if time.monotonic() - writer.used_at > PROBE_AFTER_SECONDS and not writer.answers(deadline):
            return None
        return writer

    def _open(
        self,
        transactional_id: str,
        extra: Mapping[str, Any],
        deadline: Deadline,
        *,
        watch: Watch | None = None,
        portion: int | None = None,
    ) -> KafkaWriter:
        return KafkaWriter(
            producer_config(self._settings) | dict(extra),
            transactional_id=transactional_id,
            deadline=deadline,
            watch=watch,
            portion=portion,
        )

    # The witness

    def look(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, Record | LookResult]:
        """See `Target.look`."""
        found: dict[TopicPartition, Record | LookResult] = {}
        unanswered: Retriable | None = None
        try:
            found = Witnesses(self._settings.target, flow=self._settings.flow).look(offsets, deadline)
        except Retriable as exc:
            unanswered = exc  # as it is where none of the partitions exists
        left_out = sorted(offsets.keys() - found.keys())
        counts = {topic: self.partition_count(topic, deadline) for topic in {topic for topic, _ in left_out}}
        for topic, partition in left_out:
            if partition < counts[topic]:
                raise unanswered or Retriable(
                    f"the target does not show {topic}-{partition} @ {offsets[topic, partition]}: it has no leader",
                    where=self._settings.target.alias,
                )
        return found | dict.fromkeys(left_out, "ended")

    # Topics

    def partition_count(self, topic: str, deadline: Deadline) -> int:
        """See `Target.partition_count`."""
        return self.writer(deadline).partition_count(topic, deadline)

    def create_partitions(self, topic: str, count: int, configs: Mapping[str, str], deadline: Deadline) -> None:
        """See `Target.create_partitions`."""
        from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- kept out of cold starts
        from mirrorless.topics.configs import Creation, create_topics  # noqa: PLC0415 -- same

        target = KafkaTopics(self._settings.target, flow=self._settings.flow, role="topics")
        if self.partition_count(topic, deadline):
            # A rival may have been faster; the caller counts the partitions again.
            outcome = Creation(target.grow({topic: count}, deadline)[topic])
        else:
            factor = self._settings.replication_factor
            new = NewRemoteTopic(name=topic, partitions=count, replication_factor=factor, configs=configs)
            outcome = create_topics(target, [new], deadline)[topic]
        if outcome.error:
            raise Retriable(
                f"the target did not create {topic} with {count} partitions: {outcome.error}",
                where=self._settings.target.alias,
                hint="check the flow's replication.factor and config.properties.exclude, and the function's rights on "
                "the target",
            )
        if outcome.left_out:
            trouble = f"created without {', '.join(outcome.left_out)}: the target refuses it"
            print(json.dumps({"level": "WARNING", "flow": self._settings.flow, "topic": topic, "trouble": trouble}))
        self._await_partitions(topic, count, deadline)

    def _await_partitions(self, topic: str, count: int, deadline: Deadline) -> None:
        """A new topic takes a moment to reach every broker's metadata."""
        while self.partition_count(topic, deadline) < count:
            if deadline() <= MARGIN_SECONDS:
                raise Retriable(f"{topic} did not show {count} partitions in time", where=self._settings.target.alias)
            time.sleep(0.05)  # between two looks at a condition with a deadline


def producer_config(settings: FlowSettings) -> dict[str, Any]:
    """Librdkafka's settings of a flow's producers: measured choices, then the operator's own."""
    timeout = settings.transaction_timeout_ms
    config: dict[str, Any] = client_config(settings.target, f"{settings.flow}|writer") | {
        "enable.idempotence": True,
        # Full batches leave at once, and flush() sends what is left. Past this time the client's thread spins while a
        # request is under way: 200 ms were over after the third batch where the target is 80 ms away.
        "linger.ms": timeout // 2,
        "batch.size": BATCH_BYTES,
        "compression.type": "lz4",
        # The target's topic judges what is too large, not the client: an event carries at most 6 MB.
        "message.max.bytes": 8_000_000,
        "socket.timeout.ms": timeout - 500,
        # Opening every connection at once makes the first transaction some 500 ms faster.
        "enable.sparse.connections": False,
    }
    if settings.delivery == "exactly_once":
        # A crash leaves readers waiting for this long: keep it near 10 s.
        config["transaction.timeout.ms"] = timeout
    return config | {"message.timeout.ms": timeout} | dict(settings.producer)
