"""Proof that a copy equals its original: a digest over a run's records, a fingerprint of one record.

The digest is SHA-256 over the MessagePack encoding of four columns:

    [[timestamp, ...], [key, ...], [value, ...], [[[header name, header value], ...], ...]]

integers and lengths in their shortest form, null as nil, bytes as bin, names as str. So every byte, every null, every
boundary and the order of the records count, and whoever reads the same range of the target, in any language,
computes the same 32 bytes. Columns, because a few calls into C then serve ten thousand records.
(https://github.com/msgpack/msgpack/blob/master/spec.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from mirrorless.records.record import Headers, Record

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Columns:
    """The records of a run, by column: gathered once, because touching ten thousand records is what costs."""

    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Columns:
        """Gather the columns."""
        return cls(
            [record.timestamp for record in records],
            [record.key for record in records],
            [record.value for record in records],
            [record.headers for record in records],
        )

    def digest(self) -> bytes:
        """32 bytes that change if any byte, null, header, timestamp or the order of the records changes."""
        return sha256(_encode([self.timestamps, self.keys, self.values, self.headers])).digest()

    def bytes(self) -> int:
        """Key and value bytes."""
        return sum(map(len, filter(None, self.keys))) + sum(map(len, filter(None, self.values)))


def digest(records: Sequence[Record]) -> bytes:
    """The digest of a sequence of records."""
    return Columns.of(records).digest()


def fingerprint(record: Record) -> bytes:
    """8 bytes that recognise one record by key, value and headers.

    Not by its timestamp: a target topic with `message.timestamp.type=LogAppendTime` rewrites that, and a run in
    doubt must still be recognised there.
    """
    return sha256(_encode([record.key, record.value, record.headers])).digest()[:8]
