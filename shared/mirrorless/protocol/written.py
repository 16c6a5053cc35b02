"""What was written of a lane, as its run has it: spans, digest, fingerprint and sums, of records or of whole batches.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from mirrorless.protocol.digest import Columns, fingerprint
from mirrorless.protocol.outgoing import Element, OutgoingBatch, last_of, of_batches
from mirrorless.record import Record
from mirrorless.run import DigestOf, Span, spans_of


class WrittenRecords:
    """Records, one by one."""

    digest_of: ClassVar[DigestOf] = "records"

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._columns = Columns.of(records)

    def in_order(self, downstream: Sequence[int]) -> bool:
        """Whether each record has a downstream offset, and they grow."""
        return len(downstream) == len(self._records) and _grow(downstream)

    def spans(self, downstream: Sequence[int]) -> tuple[Span, ...]:
        """The spans of the records."""
        records = self._records
        # Offsets grow, so ends as far apart as their number are the usual case, and all there is.
        if records and records[-1].offset - records[0].offset == len(records) - 1:
            return spans_of(range(records[0].offset, records[-1].offset + 1), downstream)
        return spans_of([record.offset for record in records], downstream)

    def fingerprint(self) -> bytes:
        """Of the last record."""
        return fingerprint(self._records[-1])

    def digest(self) -> bytes:
        """Over all records."""
        return self._columns.digest()

    def oldest_timestamp(self) -> int:
        """Of all records; -1 where there is none."""
        return min(self._columns.timestamps, default=-1)

    def newest_timestamp(self) -> int:
        """Of all records; -1 where there is none."""
        return max(self._columns.timestamps, default=-1)

    def records(self) -> int:
        """How many."""
        return len(self._records)

    def bytes(self) -> int:
        """Key and value bytes."""
        return self._columns.bytes()

    def passed_bytes(self) -> int:
        """None: batches were made of them."""
        return 0


class WrittenBatches:
    """Whole batches: nothing of them is parsed but the last record."""

    digest_of: ClassVar[DigestOf] = "batches"

    def __init__(self, batches: Sequence[OutgoingBatch]) -> None:
        self._batches = batches

    def in_order(self, downstream: Sequence[int]) -> bool:
        """Whether each batch has a downstream offset, behind all records of the batch before it."""
        if len(downstream) != len(self._batches) or not downstream or downstream[0] < 0:
            return False
        lengths = [len(each.upstream) for each in self._batches]
        return all(
            base + length <= following for (base, following), length in zip(pairwise(downstream), lengths, strict=False)
        )

    def spans(self, downstream: Sequence[int]) -> tuple[Span, ...]:
        """A span for each batch; those that continue each other on both sides are one."""
        spans: list[Span] = []
        for each, base in zip(self._batches, downstream, strict=True):
            for span in spans_of(each.upstream, range(base, base + len(each.upstream))):
                if spans and _continues(spans[-1], span):
                    spans[-1] = Span(spans[-1].upstream, spans[-1].downstream, spans[-1].length + span.length)
                else:
                    spans.append(span)
        return tuple(spans)

    def fingerprint(self) -> bytes:
        """Of the last record, so that whoever reads records recognises it."""
        return fingerprint(last_of(self._batches[-1]))

    def digest(self) -> bytes:
        """Over all batches as they were produced."""
        from mirrorless.record_batch import batch_digest  # noqa: PLC0415  see `outgoing`

        return batch_digest(each.batch for each in self._batches)

    def oldest_timestamp(self) -> int:
        """The lowest of the batches' first records: their headers have no other. A record within may be older."""
        return min(each.batch.base_timestamp for each in self._batches)

    def newest_timestamp(self) -> int:
        """Of all records."""
        return max(each.batch.max_timestamp for each in self._batches)

    def records(self) -> int:
        """How many."""
        return sum(len(each.upstream) for each in self._batches)

    def bytes(self) -> int:
        """Of the payloads, as they were produced."""
        return sum(len(each.batch.payload) for each in self._batches)

    def passed_bytes(self) -> int:
        """Those of the batches that lie in the source's log as they are."""
        return sum(len(each.batch.payload) for each in self._batches if each.passed)


def written_as(elements: Sequence[Element]) -> WrittenRecords | WrittenBatches:
    """What was written, by its kind. Nothing is no batch: a run without records is one of records."""
    if of_batches(elements):
        return WrittenBatches(elements)
    return WrittenRecords(elements)  # type: ignore[arg-type]  # a plan has elements of one kind


def _continues(before: Span, span: Span) -> bool:
    return (before.upstream + before.length, before.downstream + before.length) == (span.upstream, span.downstream)


def _grow(offsets: Sequence[int]) -> bool:
    if not offsets:
        return True
    # The usual cases first, each settled by one comparison.
    contiguous = isinstance(offsets, range) or offsets == list(range(offsets[0], offsets[-1] + 1))
    return offsets[0] >= 0 and (contiguous or all(map(int.__lt__, offsets, offsets[1:])))
