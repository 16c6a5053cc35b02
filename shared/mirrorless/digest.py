"""How do we prove that a copy is the original? A digest over a run's records, a fingerprint of one.

The digest is SHA-256 over the MessagePack encoding of four columns:

    [[timestamp, ...], [key, ...], [value, ...], [[[header name, header value], ...], ...]]

integers and lengths in their shortest form, null as nil, bytes as bin, names as str. So every byte, every null, every
boundary and the order of the records count, and whoever reads the same range of the target, in any language,
computes the same 32 bytes. Columns, because a few calls into C then serve ten thousand records.
(https://github.com/msgpack/msgpack/blob/master/spec.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from mirrorless.record import Record

_encode = msgspec.msgpack.Encoder().encode


def digest(records: Sequence[Record]) -> bytes:
    """32 bytes that change if any byte, null, header, timestamp or the order of `records` changes."""
    columns = [
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.headers for record in records],
    ]
    return sha256(_encode(columns)).digest()


def fingerprint(record: Record) -> bytes:
    """8 bytes that recognise one record by key, value and headers.

    Not by its timestamp: a target topic with `message.timestamp.type=LogAppendTime` rewrites that, and a run in
    doubt must still be recognised there.
    """
    return sha256(_encode([record.key, record.value, record.headers])).digest()[:8]
