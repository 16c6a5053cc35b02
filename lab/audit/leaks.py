"""The search for planted secrets in all that a lab has printed, stored and copied.

A secret is found as it is, in hexadecimal, in base64 from whichever byte on, and inside what zlib has packed.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.audit.expected_copies import RecordParts
from lab.audit.topic_reader import ends, read_topic

_BITS, _OF_BYTE, _OF_LETTER = 24, 8, 6


class SecretSearch:
    """Finds one secret."""

    def __init__(self, secret: bytes) -> None:
        """Args: secret: letters and digits, whose base64 is the same in both alphabets."""
        self._forms = (secret, secret.hex().encode(), *_in_base64(secret))

    def shows(self, data: bytes) -> bool:
        """Whether it is there in one of its forms."""
        return any(form in data for form in self._forms)

    def files(self, folder: Path, *, leave_out: Collection[str] = ()) -> Iterator[str]:
        """The files that show it. Args: leave_out: names of folders inside."""
        for path in folder.rglob("*"):
            within = path.relative_to(folder)
            with suppress(FileNotFoundError):  # a server deletes one meanwhile
                if path.is_file() and not {*within.parts} & {*leave_out} and self.shows(path.read_bytes()):
                    yield str(within)

    def items(self, client: Any) -> Iterator[str]:
        """The items that show it, each behind its table. Args: client: of DynamoDB."""
        for table in client.list_tables()["TableNames"]:
            for page in client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
                yield from (f"{table} {item}" for item in page["Items"] if any(map(self.shows, _bytes(item))))

    def records(self, bootstrap: str, topic: str, *, committed: bool = True) -> int:
        """How many records of a topic show it. Args: committed: whether aborted ones do not count.

        Raises:
            Retriable: the cluster fails.
        """
        found = 0

        def look(record: RecordParts) -> None:
            nonlocal found
            key, value, headers = record
            named = (part for name, each in headers for part in (name.encode(), each))
            found += any(self.shows(part) for part in (key, value, *named) if part is not None)

        read_topic(bootstrap, topic, ends(bootstrap, topic), look, committed=committed)
        return found


def _in_base64(secret: bytes) -> Iterator[bytes]:
    for before in range(_BITS // _OF_BYTE):
        whole = base64.b64encode(bytes(before) + secret)
        first, last = -(-before * _OF_BYTE // _OF_LETTER), (before + len(secret)) * _OF_BYTE // _OF_LETTER
        yield whole[first:last]


def _bytes(value: Any) -> Iterator[bytes]:
    """All texts and bytes in an item of DynamoDB, unpacked where they are packed."""
    if isinstance(value, str):
        yield value.encode()
    elif isinstance(value, bytes):
        yield value
        with suppress(zlib.error):
            yield zlib.decompressobj().decompress(value)  # it may be the first part of more
    elif isinstance(value, dict | list):
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _bytes(each)
