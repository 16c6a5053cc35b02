"""Whole record batches of a lane as they are produced: passed as they lie in the source's log, or packed anew.

A batch passes if nothing stands in its way (`record_batch.obstacle`) and the lane's orders do not cut it: its position,
a stop or a quarantined offset within. Any other is decoded, and its records are packed into new batches in their place.
So what is written is a sequence of batches, each with the upstream offsets of its records, and everything behind it
(plan, settle, journal, recovery) has one more kind of element and no second path.

Pure. Whoever copies by records alone never loads the format of batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard

from mirrorless.records.record import Record

if TYPE_CHECKING:
    from mirrorless.records.record_batch import Codec, PassTerms, RecordBatch

PACKED_BYTES: Final = 1_000_000
"""Of a batch that is packed anew, at most: below `max.message.bytes` as brokers have it by default."""

DROPPED: Final = frozenset({"control", "empty"})
"""Obstacles of batches that hold no record."""


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """One batch as it is produced."""

    batch: RecordBatch
    upstream: Sequence[int]
    """The upstream offset of each of its records, growing."""
    passed: bool
    """Whether it lies in the source's log as it is."""
    last: Record | None = None
    """The last record, where it was decoded already."""

    @property
    def offset(self) -> int:
        """The upstream offset of its first record: what a record has under this name."""
        return self.upstream[0]


Element = Record | OutgoingBatch
"""Of what a lane has in a batch: a record, or a batch of records."""

LaneContent: TypeAlias = "Sequence[Record] | Sequence[RecordBatch]"
"""What is read of a lane: records, or batches as they lie in the source's log."""


def last_offset(element: Element) -> int:
    """The upstream offset of the last record."""
    return element.offset if isinstance(element, Record) else element.upstream[-1]


def first_offset(content: LaneContent) -> int:
    """The upstream offset at which a lane's content begins; it is not empty."""
    first = content[0]
    return first.offset if isinstance(first, Record) else first.base_offset


def following_offset(content: LaneContent) -> int:
    """The upstream offset behind a lane's content; it is not empty."""
    last = content[-1]
    return last.offset + 1 if isinstance(last, Record) else last.next


def of_batches(elements: Sequence[Element]) -> TypeGuard[Sequence[OutgoingBatch]]:
    """Whether there are batches, and not records."""
    return bool(elements) and isinstance(elements[0], OutgoingBatch)


def is_raw(content: LaneContent) -> TypeGuard[Sequence[RecordBatch]]:
    """Whether a lane's content was read by batches."""
    return bool(content) and not isinstance(content[0], Record)


def opened(
    batches: Sequence[RecordBatch],
    terms: PassTerms,
    *,
    position: int,
    begins: int,
    apart: Collection[range],
    end: int | None,
) -> list[Element]:
    """The batches that pass, and in place of each other one its records.

    Args:
        batches: of a lane, in order.
        terms: of the lane.
        position: of the lane; batches that lie below it as a whole are left as they are, for they are not written.
        begins: the upstream offset below which nothing was wanted.
        apart: ranges of upstream offsets whose records are decided on by themselves.
        end: the upstream offset of the lane's stop, which no batch may cross; None: there is none.
    """
    from mirrorless.records.batch_records import records  # noqa: PLC0415  see above
    from mirrorless.records.record_batch import obstacle  # noqa: PLC0415  see above

    found: list[Element] = []
    for batch in batches:
        whole = range(batch.base_offset, batch.next)
        if batch.next <= begins:
            continue
        below = batch.next <= position and batch.records_count == len(whole)
        why = obstacle(batch, terms, position=max(position, begins))
        if why in DROPPED:
            continue
        crosses_stop = end is not None and batch.base_offset < end < batch.next
        by_record = any(each.start < whole.stop and whole.start < each.stop for each in apart)
        cut = batch.base_offset < begins or crosses_stop or by_record
        if cut or (why is not None and not below):
            found += [record for record in records(batch) if record.offset >= begins]
        else:
            found.append(OutgoingBatch(batch, whole, passed=True))
    return found


def opened_to_records(batches: Sequence[RecordBatch], begins: int) -> LaneContent:
    """The records of batches from an upstream offset on; the batches where there is none or one cannot be read."""
    from mirrorless.records.batch_records import records  # noqa: PLC0415  see above
    from mirrorless.records.record_batch import BatchUnreadable  # noqa: PLC0415  see above

    try:
        found = [each for batch in batches if batch.records_count for each in records(batch) if each.offset >= begins]
    except BatchUnreadable:
        return batches
    return found or batches


def sealed(elements: Sequence[Element], codec: Codec, terms: PassTerms) -> list[OutgoingBatch]:
    """The batches to produce: records between those that pass are packed anew, in order.

    The last record of all is decoded: it is the run's fingerprint.

    Args:
        elements: at or above the position, in order.
        codec: of what is packed anew.
        terms: of the lane.
    """
    found: list[OutgoingBatch] = []
    max_bytes = min(terms.max_message_bytes, PACKED_BYTES)
    loose: list[Record] = []
    for element in elements:
        if isinstance(element, Record):
            loose.append(element)
        else:
            found += _packed(loose, codec, max_bytes)
            loose.clear()
            found.append(element)
    found += _packed(loose, codec, max_bytes)
    if found:
        found[-1] = replace(found[-1], last=last_of(found[-1]))
    return found


def _packed(loose: Sequence[Record], codec: Codec, max_bytes: int) -> Iterator[OutgoingBatch]:
    from mirrorless.records.batch_records import packed  # noqa: PLC0415  see above

    at = 0
    for batch in packed(loose, codec, max_bytes=max_bytes):
        upstream = [record.offset for record in loose[at : at + batch.records_count]]
        at += batch.records_count
        yield OutgoingBatch(batch, upstream, passed=False)


def records_in(elements: Iterable[Element]) -> Iterator[Record]:
    """Every record with its upstream offset, batch by batch."""
    from mirrorless.records.batch_records import records  # noqa: PLC0415  see above

    for element in elements:
        if isinstance(element, Record):
            yield element
        else:
            for record, upstream in zip(records(element.batch), element.upstream, strict=True):
                record.offset = upstream
                yield record


def last_of(element: Element) -> Record:
    """The last record of a batch, decoded; or the record."""
    from mirrorless.records.batch_records import last_record  # noqa: PLC0415  see above

    if isinstance(element, Record):
        return element
    return element.last or last_record(element.batch)
