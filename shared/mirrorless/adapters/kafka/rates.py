"""Samples of a cluster's topics for a capacity plan: log ends, and the newest records and batches of some partitions.

Nothing is committed, and what readers with `read_committed` do not see is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from typing import Final

from confluent_kafka import KafkaException

from mirrorless.adapters.kafka.admin import DENIED
from mirrorless.adapters.kafka.log import LOOK, KafkaLog
from mirrorless.adapters.kafka.log_ranges import Range, RangePart, read_ranges
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.clock import Deadline, deadline_in
from mirrorless.cost.rates import RecordSample
from mirrorless.errors import ConfigurationError, MirrorlessError, Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import BoundedLog
from mirrorless.records.record import size_of
from mirrorless.records.record_batch import BatchUnreadable

LIST_SECONDS: Final = 20.0
"""For one list of all ends."""

READ_SECONDS: Final = 20.0
"""For the records of a sample."""

PARTITIONS_AT_ONCE: Final = 500
"""From which records are read together: a fetch brings some 64 KB of each."""

FETCH_BYTES: Final = 65_536

PARTITION_BYTES: Final = 262_144
"""Of records after which a partition has shown enough."""


class KafkaRates:
    """Implements `mirrorless.cost.rates.RateSource`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str, read_seconds: float = READ_SECONDS) -> None:
        """Args: flow: part of the name that brokers log. read_seconds: how long records are waited for, in all."""
        self._records = KafkaRecords(cluster, flow=flow, client_role="operator")
        self._read_seconds = read_seconds
        self._cluster, self._flow = cluster, flow

    def ends(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """See `RateSource.ends`."""
        found = self._records.ends(places, deadline_in(LIST_SECONDS))
        return {place: (start, stable) for place, (start, stable, _) in found.items()}

    def sample(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[str, RecordSample]:
        """See `RateSource.sample`."""
        deadline = deadline_in(self._read_seconds)
        found: dict[str, RecordSample] = {}
        places = list(ranges)
        for start in range(0, len(places), PARTITIONS_AT_ONCE):
            part = {place: ranges[place] for place in places[start : start + PARTITIONS_AT_ONCE]}
            by_records = KafkaLog(self._cluster, flow=self._flow, tuning=LOOK)
            seen = [self._read(by_records, part, deadline, _records)]
            with suppress(Retriable):  # brokers do not show whole batches: a plan goes without them
                by_batches = KafkaRawLog(self._cluster, flow=self._flow, part_bytes=FETCH_BYTES)
                seen.append(self._read(by_batches, part, deadline, _batches))
            for (topic, _), sample in [each for some in seen for each in some.items()]:
                found[topic] = _added(found.get(topic, RecordSample()), sample)
        return found

    def _read(
        self,
        log: BoundedLog,
        ranges: Mapping[TopicPartition, Range],
        deadline: Deadline,
        shown: Callable[[RangePart, int], RecordSample],
    ) -> dict[TopicPartition, RecordSample]:
        """What arrives until all ranges are read, or the time is over. Args: shown: of what came, and since where."""
        found = dict.fromkeys(ranges, RecordSample())
        since = {place: first for place, (first, _) in ranges.items()}
        with closing(log):
            for part in read_ranges(log, {place: [each] for place, each in ranges.items()}, deadline):
                place = part.place
                if part.failure is not None and not isinstance(part.failure, BatchUnreadable):
                    raise _refused(part)
                found[place] = _added(found[place], shown(part, since[place]))
                since[place] = max(since[place], part.until)
                part.over = part.over or found[place].bytes >= PARTITION_BYTES
        return {place: sample for place, sample in found.items() if sample != RecordSample()}


def _refused(part: RangePart) -> MirrorlessError:
    cause = part.failure.__cause__ if part.failure is not None else None
    what = part.failure.what if part.failure is not None else ""
    if isinstance(cause, KafkaException) and cause.args[0].code() in DENIED:
        hint = "grant Read on the topic, or give the rates by --rates FILE"
        return ConfigurationError(f"its records may not be read: {what}", where=part.place[0], hint=hint)
    return Retriable(f"its records cannot be read: {what}", where=f"{part.place[0]}-{part.place[1]}")


def _records(part: RangePart, since: int) -> RecordSample:
    """What precedes a record has been passed, whether records or not."""
    sizes = [size_of(each) for each in part.records]
    offsets = part.records[-1].offset - since + 1 if sizes else 0
    return RecordSample(records=len(sizes), offsets=offsets, bytes=sum(sizes), largest=max(sizes, default=0))


def _batches(part: RangePart, _since: int) -> RecordSample:
    return RecordSample(batches=len(part.records), batch_bytes=sum(each.size for each in part.records))


def _added(one: RecordSample, other: RecordSample) -> RecordSample:
    return RecordSample(
        records=one.records + other.records,
        offsets=one.offsets + other.offsets,
        bytes=one.bytes + other.bytes,
        largest=max(one.largest, other.largest),
        batches=one.batches + other.batches,
        batch_bytes=one.batch_bytes + other.batch_bytes,
    )
