"""How do we prove that a copy is the original? A digest over a run's records, a fingerprint of one.

The digest is SHA-256 over columns instead of records, so that a few calls into C serve ten thousand records:
a format tag, the number of records, then all timestamps, all key lengths, all value lengths, all header
counts, all keys, all values, and the headers. Every length is there, so no two different sequences of records
share an encoding, and the order of the records is part of it. Whoever reads the same range of the target
computes the same 32 bytes.

Integers are little-endian: timestamps 8 bytes, lengths and counts 4; the length of a null is -1.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import sha256
from struct import pack

from mirrorless.record import Headers, Record

_TAG = b"mirrorless digest 1\n"


def digest(records: Sequence[Record]) -> bytes:
    """32 bytes that change if any byte, null, header, timestamp or the order of `records` changes."""
    keys = [record.key for record in records]
    values = [record.value for record in records]
    headers = [record.headers for record in records]
    parts = [
        _TAG,
        pack("<q", len(records)),
        _column("q", [record.timestamp for record in records]),
        _lengths(keys),
        _lengths(values),
        _column("i", [len(each) for each in headers]),
        _joined(keys),
        _joined(values),
    ]
    parts.extend(_encoded(each) for each in headers if each)
    hasher = sha256()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def fingerprint(record: Record) -> bytes:
    """8 bytes that recognise one record by key, value and headers.

    Not by its timestamp: a target topic with `message.timestamp.type=LogAppendTime` rewrites that, and a run in
    doubt must still be recognised there.
    """
    key, value = record.key, record.value
    hasher = sha256(pack("<ii", -1 if key is None else len(key), -1 if value is None else len(value)))
    hasher.update(key or b"")
    hasher.update(value or b"")
    hasher.update(_encoded(record.headers))
    return hasher.digest()[:8]


def _lengths(column: list[bytes | None]) -> bytes:
    return _column("i", [-1 if each is None else len(each) for each in column])


def _joined(column: list[bytes | None]) -> bytes:
    return b"".join([each for each in column if each])


def _column(typecode: str, values: list[int]) -> bytes:
    column = array(typecode, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _encoded(headers: Headers) -> bytes:
    parts = []
    for name, value in headers:
        encoded = name.encode()
        parts += [pack("<ii", len(encoded), -1 if value is None else len(value)), encoded, value or b""]
    return b"".join(parts)
