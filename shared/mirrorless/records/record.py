"""A record: bytes, headers in order, and nothing interpreted.

Null and empty are different values everywhere: a null value is a tombstone, an empty value is zero bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

Headers = list[tuple[str, bytes | None]]
"""Header names and values in order; names may repeat, a value may be null or empty."""


NOT_TEXT: Final = "\ufffd"
"""In the name of a header: what stands there in an event for bytes that are not UTF-8."""


class Record(msgspec.Struct, gc=False):
    """One record of one topic-partition, as it is on the source.

    The field names are those of Lambda's event, so that an event decodes straight into records. While an event is
    being decoded `headers` holds the wire form, afterwards `Headers`. `gc=False`: a record holds no cycle,
    and an event has up to 10,000 of them.
    """

    offset: int
    """Upstream offset."""
    timestamp: int
    """Milliseconds since the epoch; -1 where the source has none."""
    headers: Headers
    key: bytes | None = None
    value: bytes | None = None


def size_of(record: Record) -> int:
    """Bytes of key, value and headers."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name.encode()) + len(value or b"") for name, value in record.headers)


def event_bytes(record: Record) -> int:
    """The bytes of a record in an event's JSON: base64, and each byte of a header as a signed number."""
    content = sum(4 * ((len(part) + 2) // 3) for part in (record.key, record.value) if part is not None)
    headers = sum(len(name) + 7 + sum(map(_DIGITS.__getitem__, value or b"")) for name, value in record.headers)
    return content + headers


_DIGITS: Final = tuple(len(str(byte if byte < 128 else byte - 256)) + 1 for byte in range(256))  # noqa: PLR2004 -- Java's bytes are signed
