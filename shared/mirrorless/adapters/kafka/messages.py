"""The record of a message of the Kafka client."""

from __future__ import annotations

from confluent_kafka import Message

from mirrorless.record import Record


def record_of(message: Message) -> Record:
    """The record of a message that is not an event of the client's."""
    return Record(
        offset=message.offset() or 0,
        timestamp=message.timestamp()[1],
        headers=list(message.headers() or []),  # type: ignore[arg-type]  # read back as bytes or None
        key=message.key(),
        value=message.value(),
    )
