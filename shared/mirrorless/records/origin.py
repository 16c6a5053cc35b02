"""The origin header: the cluster on which a record was first produced, where flows with the same names form a circle.

A flow with `loop.prevention: header` adds it to every record that it copies, once, and copies no record that has it to
the cluster that it names. So a record ends where it began, whatever the number of clusters in the circle.

    mirrorless-origin: us-east/orders

The topic is part of the value because applications pass headers on: a stream processor that reads `orders` and writes
`orders-by-day` writes new records, not copies. For the same reason a value counts only if it names this record's topic
and a cluster of the circle. Any other is the application's own, and is copied as it is.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorless.records.record import Record

ORIGIN_HEADER: Final = "mirrorless-origin"

OffsetRows = tuple[tuple[int, int], ...]
"""Half-open ranges of upstream offsets, growing."""


@dataclass(frozen=True, slots=True)
class OriginRule:
    """The rule of one topic of one flow."""

    own: bytes
    """The value of a record that was first produced on the flow's source."""
    returning: bytes
    """The value of one that was first produced on its target."""
    known: frozenset[bytes]
    """Every value that counts."""

    @classmethod
    def of(cls, topic: str, *, source: str, target: str, clusters: Iterable[str]) -> OriginRule:
        """The rule of a topic, which has one name on all clusters. Args: clusters: of the circle."""
        values = {alias: f"{alias}/{topic}".encode() for alias in (source, target, *clusters)}
        return cls(values[source], values[target], frozenset(values.values()))

    def returns(self, record: Record) -> bool:
        """Whether the target is where a record was first produced."""
        return any(name == ORIGIN_HEADER and value == self.returning for name, value in record.headers)

    def is_copy(self, record: Record) -> bool:
        """Whether a record of the target was first produced elsewhere, and came over a flow."""
        return any(name == ORIGIN_HEADER and value in self.known for name, value in record.headers) and not (
            self.returns(record)
        )

    def marked(self, record: Record) -> Record:
        """A record as it is written: with the header, which one that has come from elsewhere has already."""
        if any(name == ORIGIN_HEADER and value in self.known for name, value in record.headers):
            return record
        headers = [*record.headers, (ORIGIN_HEADER, self.own)]
        return Record(
            offset=record.offset, timestamp=record.timestamp, headers=headers, key=record.key, value=record.value
        )

    def split(self, records: Iterable[Record]) -> tuple[list[Record], list[int]]:
        """The records to copy, marked, and the upstream offsets of those that return."""
        copied: list[Record] = []
        returned: list[int] = []
        for record in records:
            if self.returns(record):
                returned.append(record.offset)
            else:
                copied.append(self.marked(record))
        return copied, returned


def rows_of(offsets: Sequence[int]) -> OffsetRows:
    """Growing offsets as ranges."""
    rows: list[tuple[int, int]] = []
    for offset in offsets:
        if rows and rows[-1][1] == offset:
            rows[-1] = (rows[-1][0], offset + 1)
        else:
            rows.append((offset, offset + 1))
    return tuple(rows)
