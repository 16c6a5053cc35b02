"""The record of a message of the Kafka client."""

from __future__ import annotations

from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Message

from mirrorless.records.record import NOT_TEXT, Headers, Record

_UNREADABLE: Final[Headers] = [(NOT_TEXT, None)]

_headers: Any = methodcaller("headers")
"""Asks for them by a call that Python checks. Of a warm method call it takes the answer without looking for an error,
and the client answers a name that is not UTF-8 by a list and an error: whatever comes next would fail of it."""


def headers_of(message: Message) -> Headers:
    """The headers of a message; where the client has no answer to one's name, one that no plan writes."""
    try:
        return _headers(message) or []
    except (SystemError, UnicodeDecodeError):
        return unreadable_headers(message)


def unreadable_headers(message: Message) -> Headers:
    """The headers of a message whose own could not be read."""
    # The client keeps the list that it has made, with nothing where a name should be: read once more, it would end the
    # process.
    message.set_headers(_UNREADABLE)  # type: ignore[arg-type]  # as it is read back
    return _UNREADABLE


def record_of(message: Message) -> Record:
    """The record of a message that is not an event of the client's."""
    return Record(
        offset=message.offset() or 0,
        timestamp=message.timestamp()[1],
        headers=headers_of(message),
        key=message.key(),
        value=message.value(),
    )
