"""Decoding of a Lambda event into records: one typed pass over the JSON, then the headers.

Facts this rests on (AWS Lambda developer guide, "Using Lambda with Apache Kafka", and reports of users):
a null key or value is left out; an empty one is `""`; headers may be left out likewise; header bytes are Java's, hence
signed; a batch mixes partitions but never topics; the map's keys are `topic-partition`, and a topic may contain hyphens
itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec
import pybase64

from mirrorless.errors import EventError
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.outgoing import LaneContent, first_offset
from mirrorless.records.record import Headers, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What was read, by topic-partition of the source, each in offset order. An event of a mapping has one topic."""

    records: Mapping[TopicPartition, LaneContent]
    """Of each: records, or whole record batches as they lie in the source's log."""
    covered: Mapping[TopicPartition, int] = field(default_factory=dict)
    """By partition: the upstream offset below which nothing is left to come, where the log itself was read. What
    follows the last record are transaction markers and aborted records."""
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    """By partition: the upstream offset from which whole batches were read. What lies below it in the first batch was
    not wanted, and is no redelivery."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """By partition: the leader epoch at the end of its content, where that is known; see `Run.epoch`."""
    left_out: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """By partition: the upstream offsets of a batch that nobody can read and that the operator ordered to leave out."""
    unexamined: frozenset[TopicPartition] = frozenset()
    """Of these the source's log may have something that was passed over; see `Replicator.examined`."""

    @classmethod
    def of_topic(
        cls, topic: str, records: Mapping[int, LaneContent], covered: Mapping[int, int] | None = None
    ) -> Batch:
        """Records of one topic, by partition."""
        return cls(
            records={(topic, partition): each for partition, each in records.items()},
            covered={(topic, partition): offset for partition, offset in (covered or {}).items()},
        )

    def first(self, place: TopicPartition) -> int:
        """The upstream offset at which the content of a partition begins; it is not empty."""
        if place in self.left_out:
            return self.left_out[place][0]
        return max(first_offset(self.records[place]), self.begins.get(place, 0))

    def records_of(self, place: TopicPartition) -> Sequence[Record]:
        """Its records, where it was read by records."""
        return cast("Sequence[Record]", self.records[place])

    @property
    def topics(self) -> list[str]:
        """The topics of its records, in order."""
        return sorted({topic for topic, _ in self.records})


class _WireRecord(Record, gc=False):
    """A record whose headers are still the event's list of one-entry objects of signed bytes, or null or left out."""

    headers: list[dict[str, list[int] | None]] | None = None  # type: ignore[assignment]  # the same field's wire form


class _LargeWireRecord(_WireRecord, gc=False):
    """A record whose value is still base64."""

    value: str | None = None  # type: ignore[assignment]  # the same field's wire form


class _Envelope(msgspec.Struct, gc=False):
    # The older samples of self-managed events carry the third name.
    eventSource: Literal["aws:kafka", "SelfManagedKafka", "aws:SelfManagedKafka"]  # noqa: N815  # the event's name


class _Event(_Envelope, gc=False):
    records: dict[str, list[_WireRecord]]


class _LargeEvent(_Envelope, gc=False):
    records: dict[str, list[_LargeWireRecord]]


LARGE_RECORD_BYTES = 1_400
"""JSON of a record on average, from which vector instructions for base64 pay for a call per record: 10 KB values decode
in half the time, 1 KB values in 0.85 of it, 500 B values would take longer."""
VERY_LARGE_RECORD_BYTES = 4_000
"""The same, from which values are found by their quotes and left out of what is parsed: 10 KB values decode in half the
time once more, 2 KB values would gain nothing."""
_SAMPLE_BYTES = 1 << 16
_VALUE = b'"value":"'
"""As AWS writes it. Inside of a string its quotes would be escaped."""

_decode = msgspec.json.Decoder(_Event).decode
_decode_large = msgspec.json.Decoder(_LargeEvent).decode


def decode_event(event: bytes | Mapping[str, Any]) -> Batch:
    """Decode what a Kafka event source mapping sent.

    Args:
        event: the JSON itself where we own the runtime's decoder, or what the runtime made of it.

    Raises:
        EventError: when this is not a Kafka event, names two topics, or is out of order.
    """
    text = event if isinstance(event, bytes) else msgspec.json.encode(event)
    try:
        decoded = _decoder(text)(text)
    except msgspec.DecodeError as exc:
        raise EventError(
            f"this is not an event of a Kafka event source mapping: {exc}",
            hint="use the function as the target of a Kafka mapping without filter and without schema registry",
        ) from exc
    topics = set()
    lanes: dict[TopicPartition, list[Record]] = {}
    for topic_partition, records in decoded.records.items():
        topic, partition = _split(topic_partition)
        topics.add(topic)
        last = -1
        for record in records:
            if record.offset <= last:
                raise EventError(f"{topic_partition} has offset {record.offset} after {last}: a mapping keeps order")
            last = record.offset
            if record.headers:
                record.headers = _headers(record.headers)  # type: ignore[assignment]  # from wire form to Headers
            elif record.headers is None:
                record.headers = []
        lanes[topic, partition] = records  # type: ignore[assignment]  # every record is in its final form now
    if len(topics) != 1:
        raise EventError(f"the event carries the topics {sorted(topics)}: a mapping has exactly one")
    return Batch(records=lanes)


def _decoder(text: bytes) -> Callable[[bytes], _Event | _LargeEvent]:
    sample = text[:_SAMPLE_BYTES]
    records = sample.count(b'"offset"')
    if len(sample) >= VERY_LARGE_RECORD_BYTES * records:
        return _decode_without_values
    return _decode_with_large_values if len(sample) >= LARGE_RECORD_BYTES * records else _decode


def _decode_with_large_values(text: bytes) -> _Event | _LargeEvent:
    """Decode values apart from the rest.

    Raises:
        msgspec.DecodeError: as the plain decoder, which names the place of what is wrong.
    """
    decoded, from_base64 = _decode_large(text), pybase64.b64decode
    try:
        for records in decoded.records.values():
            for record in records:
                if record.value is not None:
                    # By position: keywords cost a tenth of a record's decoding. No second alphabet, nothing skipped.
                    record.value = from_base64(record.value, None, True)  # type: ignore[assignment]  # noqa: FBT003
    except ValueError:
        return _decode(text)
    return decoded


def _decode_without_values(text: bytes) -> _Event:
    """Decode values where they lie, and the rest with an empty string in place of each.

    Raises:
        msgspec.DecodeError: as the plain decoder, which names the place of what is wrong.
    """
    view, end, from_base64 = memoryview(text), 0, pybase64.b64decode
    rest: list[memoryview] = []
    values: list[bytes] = []
    try:
        while (begin := text.find(_VALUE, end) + len(_VALUE)) >= len(_VALUE):
            rest.append(view[end:begin])
            end = text.index(b'"', begin)
            values.append(from_base64(view[begin:end], None, True))  # noqa: FBT003 -- see above
    except ValueError:
        return _decode(text)
    rest.append(view[end:])
    decoded = _decode(b"".join(rest))
    with_value = [record for records in decoded.records.values() for record in records if record.value is not None]
    if len(with_value) != len(values) or any(record.value for record in with_value):
        return _decode(text)  # not written as AWS does
    for record, value in zip(with_value, values, strict=True):
        record.value = value
    return decoded


def _split(topic_partition: str) -> tuple[str, int]:
    topic, hyphen, partition = topic_partition.rpartition("-")
    if not hyphen or not partition.isdecimal():
        raise EventError(f"{topic_partition!r} is not a topic and a partition number")
    return topic, int(partition)


def _headers(wire: list[dict[str, list[int] | None]]) -> Headers:
    return [
        (name, None if value is None else _signed_bytes(value)) for header in wire for name, value in header.items()
    ]


def _signed_bytes(value: list[int]) -> bytes:
    try:
        return bytes(value)  # the common case: no byte above 127
    except ValueError:
        pass
    try:
        return array("b", value).tobytes()
    except OverflowError as exc:
        raise EventError(f"a header's value {value} is neither signed nor unsigned bytes") from exc
