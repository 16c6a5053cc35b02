"""The encoder of Kafka events, byte for byte as an event source mapping writes them.

Written from AWS's own events, apart from the decoder that reads them, so that each can catch the other's mistakes.
Every record is encoded once; the size of a growing event is a sum of lengths, so the 6 MB limit is checked exactly
and without joining anything.

The text is UTF-8 without ASCII escapes, compact, members in the order of AWS's samples: what a Java poller writes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

PAYLOAD_LIMIT = 6 * 1024 * 1024
"""Bytes of one serialized event: Lambda's synchronous payload quota, counted after base64."""

_TIMESTAMP_TYPES = ("NO_TIMESTAMP_TYPE", "CREATE_TIME", "LOG_APPEND_TIME")
_SIGNED = tuple(str(byte if byte < 128 else byte - 256) for byte in range(256))  # noqa: PLR2004  Java's bytes are signed


_headers: Any = methodcaller("headers")
"""A call that Python checks: a warm method's answer it takes without looking for the error that the client leaves."""


class KafkaRecord(Protocol):
    """The part of `confluent_kafka.Message` that an event carries."""

    def topic(self) -> str | None: ...  # noqa: D102  the client's own names
    def partition(self) -> int | None: ...  # noqa: D102
    def offset(self) -> int | None: ...  # noqa: D102
    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102
    def key(self) -> bytes | None: ...  # noqa: D102
    def value(self) -> bytes | None: ...  # noqa: D102
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRecord:
    """One record, ready to be laid into an event.

    Attributes:
        partition: its partition.
        offset: its upstream offset.
        body: its JSON object as UTF-8.
    """

    partition: int
    offset: int
    body: bytes


def encode_record(record: KafkaRecord) -> EncodedRecord:
    """Encode a consumed record. A null key or value is left out; an empty one is `""`.

    AWS does not document a header without a value: it is `null`, as Java serializers write it.

    Raises:
        ValueError: when the record has no place (an error or end-of-partition event, not a record).
    """
    partition, offset = record.partition(), record.offset()
    if partition is None or offset is None:
        raise ValueError("not a record: it has no partition or no offset")
    kind, timestamp_ms = record.timestamp()
    key, value = record.key(), record.value()
    place = (
        f'{{"topic":{_text(record.topic() or "")},"partition":{partition},"offset":{offset},'
        f'"timestamp":{timestamp_ms},"timestampType":"{_TIMESTAMP_TYPES[kind]}"'
    )
    parts = [place]
    if key is not None:
        parts.append(f',"key":"{b64encode(key).decode()}"')
    if value is not None:
        parts.append(f',"value":"{b64encode(value).decode()}"')
    headers = (f"{{{_text(name)}:{'null' if it is None else _signed(it)}}}" for name, it in _headers_of(record))
    parts.append(f',"headers":[{",".join(headers)}]}}')
    # A header name that is no Unicode becomes question marks, as it does in Java.
    body = "".join(parts).encode("utf-8", "replace")
    return EncodedRecord(partition=partition, offset=offset, body=body)


def _headers_of(record: KafkaRecord) -> Sequence[tuple[str, bytes | None]]:
    try:
        return _headers(record) or ()
    except (SystemError, UnicodeDecodeError):
        return (("\ufffd", b""),)  # where Java decodes a name that is not UTF-8, with the rest of it


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Where an event's records come from.

    Attributes:
        topic: the mapping's one topic.
        bootstrap_servers: `host:port`, comma separated.
        arn: the cluster's ARN for `aws:kafka`; None for `SelfManagedKafka`, whose events carry no ARN.
    """

    topic: str
    bootstrap_servers: str
    arn: str | None = None

    def opening(self) -> bytes:
        """Everything of an event before its first topic-partition."""
        arn = "" if self.arn is None else f'"eventSourceArn":{_text(self.arn)},'
        kind = "SelfManagedKafka" if self.arn is None else "aws:kafka"
        return (
            f'{{"eventSource":"{kind}",{arn}"bootstrapServers":{_text(self.bootstrap_servers)},"records":{{'
        ).encode()

    def lane_opening(self, partition: int) -> bytes:
        """The start of one topic-partition's array."""
        return f"{_text(f'{self.topic}-{partition}')}:[".encode()


_CLOSING = b"}}"


@dataclass(slots=True, kw_only=True)
class EventDraft:
    """An event while it grows. Its `size` is exactly `len(to_bytes())`, at any moment."""

    source: EventSource
    size: int = field(init=False)
    count: int = field(default=0, init=False)
    _bodies: dict[int, list[bytes]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.size = len(self.source.opening()) + len(_CLOSING)

    def size_with(self, record: EncodedRecord) -> int:
        """The event's size in bytes, were this record added."""
        if record.partition in self._bodies:
            return self.size + len(",") + len(record.body)
        separator = len(",") if self._bodies else 0
        return self.size + separator + len(self.source.lane_opening(record.partition)) + len(record.body) + len("]")

    def add(self, record: EncodedRecord) -> None:
        """Append the record to its topic-partition's array. Order within a partition is the caller's order."""
        self.size = self.size_with(record)
        self.count += 1
        self._bodies.setdefault(record.partition, []).append(record.body)

    def to_bytes(self) -> bytes:
        """The event: UTF-8 JSON of `size` bytes."""
        lanes = [
            b"%b%b]" % (self.source.lane_opening(partition), b",".join(bodies))
            for partition, bodies in self._bodies.items()
        ]
        return b"%b%b%b" % (self.source.opening(), b",".join(lanes), _CLOSING)


def encode_event(source: EventSource, records: Sequence[EncodedRecord]) -> bytes:
    """The event of these records, in this order."""
    draft = EventDraft(source=source)
    for record in records:
        draft.add(record)
    return draft.to_bytes()


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _signed(value: bytes) -> str:
    return f"[{','.join(map(_SIGNED.__getitem__, value))}]"
