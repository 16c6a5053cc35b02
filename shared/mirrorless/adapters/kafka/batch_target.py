"""The target cluster of an engine that copies whole record batches: one raw producer, and the look of the Kafka client.

Its transactional ids are those of `KafkaTarget`, so whichever engine a run has, its first writer fences what the other
has left open. Records are packed into batches here: those of a lane whose batches are opened, and those of a batch that
the target refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from mirrorless.adapters.kafka.client import seconds_left
from mirrorless.adapters.kafka.target import PROBE_AFTER_SECONDS, KafkaTarget
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.clock import Deadline
from mirrorless.flow.naming import transactional_id
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.kafka import PORTION, Delivery, Refusal, TopicPartition
from mirrorless.protocol.outgoing import PACKED_BYTES, LaneContent, is_raw
from mirrorless.records.batch_records import packed
from mirrorless.records.record import Record
from mirrorless.records.record_batch import CODECS, Codec, PassTerms, RecordBatch

TERMS_SECONDS: Final = 300.0
"""For which the configs of a remote topic are taken to stay as they were read."""

PACKED_CODEC: Final[Codec] = "lz4"
"""Of records that are packed here, as the Kafka client compresses them."""

ANY_BYTES: Final = 2**31 - 1


class BatchWriter:
    """Implements `mirrorless.ports.kafka.Writer` for records and for whole batches."""

    def __init__(self, raw: RawWriter, *, codec: Codec, batch_bytes: int, batch_records: int | None = None) -> None:
        """Args: batch_records: of a careful writer: of each batch that it packs, at most."""
        self._raw, self._codec, self._batch_bytes, self._batch_records = raw, codec, batch_bytes, batch_records

    @property
    def transactional_id(self) -> str:
        """See `Writer.transactional_id`."""
        return self._raw.transactional_id

    @property
    def throttled_ms(self) -> int:
        """See `Writer.throttled_ms`."""
        return self._raw.throttled_ms

    def write(
        self,
        lanes: Mapping[TopicPartition, LaneContent],
        deadline: Deadline,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[TopicPartition, Delivery]:
        """See `Writer.write`."""
        batches = {place: self._batches(content) for place, content in lanes.items()}
        written = self._raw.write({place: some for place, some in batches.items() if some}, deadline, meanwhile)
        found = dict.fromkeys(lanes, Delivery(downstream=()))
        for place, each in written.items():
            raw = is_raw(lanes[place])
            downstream = each.downstream if raw else _by_record(batches[place], each.downstream)
            refusal = each.refusal
            if refusal is not None and not raw:
                refusal = replace(refusal, index=len(downstream))
            found[place] = Delivery(downstream=downstream, refusal=refusal)
        return found

    def commit(self, deadline: Deadline) -> None:
        """See `Writer.commit`."""
        self._raw.commit(deadline)

    def abort(self, deadline: Deadline) -> None:
        """See `Writer.abort`."""
        self._raw.abort(deadline)

    def _batches(self, content: LaneContent) -> Sequence[RecordBatch]:
        if is_raw(content):
            return content
        records: Sequence[Record] = content  # type: ignore[assignment]  # what is not raw has records
        if self._batch_records is None:
            return list(packed(records, self._codec, max_bytes=self._batch_bytes))
        step = self._batch_records
        portions = (records[at : at + step] for at in range(0, len(records), step))
        each = (batch for some in portions for batch in packed(some, self._codec, max_bytes=self._batch_bytes))
        return list(islice(each, PORTION))


class KafkaBatchTarget(KafkaTarget):
    """Implements `mirrorless.ports.kafka.Target` with one raw producer. Only for delivery exactly once."""

    def __init__(self, settings: FlowSettings, *, environment: str) -> None:
        """Args: environment: see `KafkaTarget`."""
        super().__init__(settings, environment=environment)
        self._raw: RawWriter | None = None
        self._largest = ANY_BYTES
        self._packs_by: Codec = PACKED_CODEC
        self._topics = KafkaTopics(settings.target, flow=settings.flow, role="batch-target")
        self._terms: dict[str, tuple[float, PassTerms]] = {}

    def writer(self, deadline: Deadline) -> BatchWriter:  # type: ignore[override]  # another engine's
        """See `Target.writer`."""
        return BatchWriter(self._opened(deadline), codec=self._packs_by, batch_bytes=min(self._largest, PACKED_BYTES))

    def explained(
        self,
        place: TopicPartition,  # noqa: ARG002 -- the port's
        records: Sequence[Record],  # noqa: ARG002 -- the port's
        refusal: Refusal,
        deadline: Deadline,  # noqa: ARG002 -- the port's
    ) -> Refusal:
        """See `Target.explained`. All is in the answer already."""
        return refusal

    def careful_writer(self, batch_records: int, deadline: Deadline, *, codec: str = "") -> BatchWriter:  # type: ignore[override]  # the same
        """See `Target.careful_writer`. The same producer: one transaction is open at a time."""
        bytes_, by = min(self._largest, PACKED_BYTES), next((each for each in CODECS if each == codec), self._packs_by)
        return BatchWriter(self._opened(deadline), codec=by, batch_bytes=bytes_, batch_records=batch_records)

    def prefer(self, codec: str) -> None:
        """See `Target.prefer`."""
        self._packs_by = next(each for each in CODECS if each == codec)

    def limit_batches(self, refused_bytes: int) -> None:
        """See `Target.limit_batches`. Larger batches are opened from now on, and packed anew."""
        self._largest = max(1, min(self._largest, refused_bytes) // 2)
        self._terms.clear()

    def discard_writers(self) -> None:
        """See `Target.discard_writers`."""
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()
        self._terms.clear()
        super().discard_writers()

    def fence(self, transactional_id: str, deadline: Deadline) -> None:
        """See `Target.fence`."""
        if self._raw is not None and transactional_id == self._raw.transactional_id:
            raw, self._raw = self._raw, None
            raw.close()
        super().fence(transactional_id, deadline)

    def partition_count(self, topic: str, deadline: Deadline) -> int:
        """See `Target.partition_count`."""
        return self._topics.partitions(deadline).get(topic, 0)

    def terms(self, topic: str) -> PassTerms:
        """What a remote topic takes of whole batches, by its configs; anything, until it is there."""
        known = self._terms.get(topic)
        if known is None or time.monotonic() - known[0] > TERMS_SECONDS:
            configs, _ = self._topics.configs([topic], lambda: 10.0)
            values = {each.name: each.value for each in configs.get(topic, ())}
            largest = min(self._largest, int(values.get("max.message.bytes") or ANY_BYTES))
            found = PassTerms(max_message_bytes=largest, compression_type=values.get("compression.type") or "producer")
            if not values:
                return found
            known = self._terms[topic] = time.monotonic(), found
        return known[1]

    def _opened(self, deadline: Deadline) -> RawWriter:
        warm = self._raw
        if warm is not None and time.monotonic() - warm.used_at > PROBE_AFTER_SECONDS and not warm.answers(deadline):
            warm.close()
            warm = None
        if warm is None:
            settings = self._settings
            seconds_left(deadline)
            warm = RawWriter(
                settings.target,
                flow=settings.flow,
                transactional_id=transactional_id(settings.name, self._environment),
                timeout_ms=settings.transaction_timeout_ms,
                deadline=deadline,
            )
        self._raw = warm
        return warm


def _by_record(batches: Sequence[RecordBatch], bases: Sequence[int]) -> list[int]:
    """The downstream offset of each record of the batches that were taken."""
    taken = zip(batches, bases, strict=False)
    return [base + i for batch, base in taken for i in range(batch.records_count)]
