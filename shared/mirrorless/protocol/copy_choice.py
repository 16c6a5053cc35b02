"""The way in which a lane is copied, by whole record batches or by records, from what its batches are like. Pure.

A batch that passes costs about as much whatever is in it; a record that is decoded and packed anew costs by itself. So
lanes whose batches hold a few small records are opened, and their records are packed into larger batches; all others
pass. The same figures say which engine a run should have: that of whole batches, or the Kafka client, which copies
records at a fifth of the cost, and shows no batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from mirrorless.records.record_batch import RecordBatch

Copy = Literal["auto", "records"]
"""What a flow asks for."""

Engine = Literal["batches", "records"]

PASSED_BATCH_US: Final = 35.0
"""CPU of a batch that passes: its header, its share of a request, its span."""

PASSED_KB_US: Final = 2.5
"""CPU of a KB of payload that passes: digest, checksum, sockets."""

OPENED_RECORD_US: Final = 10.0
"""CPU of a record that is decoded and packed anew."""

OPENED_KB_US: Final = 12.0
"""CPU of a KB of payload that is decompressed and compressed again."""

CLIENT_RECORD_US: Final = 2.0
CLIENT_KB_US: Final = 4.0
"""The same by the Kafka client, digests included."""

LARGE_BATCH_BYTES: Final = 256_000
"""Of a payload whose cost is nearly that of its bytes alone."""

REMEMBERED: Final = 64
"""Batches of a lane that count, about."""

MARGIN: Final = 1.3
"""By which the other way must be cheaper: lanes at the border do not change back and forth."""


@dataclass(slots=True)
class BatchTally:
    """What a lane's batches were like lately."""

    batches: float = 0.0
    records: float = 0.0
    bytes: float = 0.0
    opens: bool = False
    """Whether the lane's batches are opened."""
    must_open: bool = False
    """Whether they must be, for the lane's records are changed."""
    by_client: bool = False
    """Whether its log has batches of an old format, which the Kafka client alone reads."""

    def note(self, batches: Sequence[RecordBatch]) -> None:
        """Count batches that were read, and decide anew; older ones count less."""
        if not batches:
            return
        kept = max(0.0, 1 - len(batches) / REMEMBERED)
        self.batches = self.batches * kept + len(batches)
        self.records = self.records * kept + sum(each.records_count for each in batches)
        self.bytes = self.bytes * kept + sum(len(each.payload) for each in batches)
        passed, opened = self.cost_passed(), self.cost_opened()
        if self.must_open:
            self.opens = True
        elif self.opens:
            self.opens = opened < passed * MARGIN
        else:
            self.opens = opened * MARGIN < passed

    def cost_passed(self) -> float:
        """Microseconds, where they pass."""
        return self.batches * PASSED_BATCH_US + self.bytes / 1000 * PASSED_KB_US

    def cost_opened(self) -> float:
        """Microseconds, where their records are packed anew."""
        return self.records * OPENED_RECORD_US + self.bytes / 1000 * OPENED_KB_US

    def cost_by_client(self) -> float:
        """Microseconds, by the Kafka client."""
        return self.records * CLIENT_RECORD_US + self.bytes / 1000 * CLIENT_KB_US


def cpu_beside_large(batch_bytes: float) -> float:
    """CPU of a byte in passing batches of this size, over that in batches of `LARGE_BATCH_BYTES`."""
    large, small = BatchTally(batches=1, bytes=LARGE_BATCH_BYTES), BatchTally(batches=1, bytes=batch_bytes)
    return (small.cost_passed() / batch_bytes) / (large.cost_passed() / LARGE_BATCH_BYTES)


def engine_of(asked: Copy, tallies: Iterable[BatchTally]) -> Engine:
    """The engine of a run whose lanes were like this lately; whole batches where nothing is known."""
    if asked == "records":
        return "records"
    seen = list(tallies)
    if any(each.by_client for each in seen):
        return "records"
    known = [each for each in seen if each.batches]
    by_batches = sum(
        each.cost_opened() if each.must_open else min(each.cost_passed(), each.cost_opened()) for each in known
    )
    by_records = sum(each.cost_by_client() for each in known)
    return "records" if by_records * MARGIN < by_batches else "batches"
