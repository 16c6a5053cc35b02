"""The merge of a batch with what the source's log holds in its gaps: records that no Lambda event can carry.

A mapping leaves such a record out, and delivers what follows. So the gaps of a batch are read at the source before it
is planned, from the lane's position on up to the batch's last record. What stands there takes its place in the order,
and the batch goes in portions where all of it together would be too large.

Pure: heads, records and reads of the source in, portions out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState
from mirrorless.ports.kafka import RangesRead, TopicPartition
from mirrorless.protocol.event import Batch
from mirrorless.records.record import Record, size_of

if TYPE_CHECKING:
    from mirrorless.records.record_batch import BatchUnreadable

PORTION_BYTES: Final = 8_000_000
"""Of records found in gaps that go in one transaction; a larger one goes alone with what stands before it."""

NEAR_BYTES: Final = 256 * 1024
"""Between two gaps that are read through, about."""

_OFFSET = attrgetter("offset")


def gaps_of_batch(
    head: Head, state: LaneState, records: Sequence[Record], *, from_log_start: bool
) -> list[tuple[int, int]]:
    """The upstream offsets that a batch passes without a record, as ranges; none at or above a stop.

    Args:
        head: where the lane's chain ends; not in doubt.
        state: of the lane.
        records: the batch's records of this lane, offsets growing.
        from_log_start: whether a lane without a chain begins with its log. Otherwise it begins at its first record, for
            only its mapping's group shows where the flow began with it.
    """
    fresh = records[bisect_left(records, head.position, key=_OFFSET) :]
    if not fresh:
        return []
    at = fresh[0].offset if head == NEW_LANE and not from_log_start else head.position
    if fresh[-1].offset - at == len(fresh) - 1:
        return []  # the usual batch
    end = state.stop.upstream_offset if state.stop is not None else fresh[-1].offset
    ranges = []
    for record in fresh:
        if at < record.offset and at < end:
            ranges.append((at, min(record.offset, end)))
        at = record.offset + 1
    return ranges


def near_offsets(lanes: Iterable[Sequence[Record]]) -> int:
    """How many upstream offsets between two gaps are `NEAR_BYTES`, by the size of some of the records."""
    some = [record for records in lanes for record in records[:100]]
    return max(1, NEAR_BYTES * len(some) // max(1, sum(map(size_of, some))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """The part of a batch that goes in one transaction."""

    batch: Batch
    damaged: Mapping[TopicPartition, BatchUnreadable] = field(default_factory=dict)
    """Batches that nobody can read, at which lanes go no further."""
    examined: frozenset[TopicPartition] = frozenset()
    """Topic-partitions whose gaps were read."""
    rest: Batch | None = None
    """What follows; None for nothing."""

    def unread(self, gaps: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> list[TopicPartition]:
        """The topic-partitions of which not even the beginning of the first gap was read."""
        left = () if self.rest is None else self.rest.records
        return [place for place in left if place not in self.damaged and self.batch.covered[place] <= gaps[place][0][0]]


def merged(
    batch: Batch,
    gaps: Mapping[TopicPartition, Sequence[tuple[int, int]]],
    read: Mapping[TopicPartition, RangesRead],
    *,
    ordered: Callable[[TopicPartition, BatchUnreadable], bool],
) -> Portion:
    """The batch with what stands in its gaps, as far as these were read.

    Args:
        batch: as it came.
        gaps: of its topic-partitions, those that have any.
        read: what the source holds there.
        ordered: whether the operator has ordered to leave out a batch that nobody can read.
    """
    records, covered = dict(batch.records), dict(batch.covered)
    damaged: dict[TopicPartition, BatchUnreadable] = {}
    left_out: dict[TopicPartition, tuple[int, int]] = {}
    rest: dict[TopicPartition, Sequence[Record]] = {}
    examined = set()
    for place, ranges in gaps.items():
        found, delivered = read.get(place, RangesRead(until=-1)), batch.records_of(place)
        first, (_, end) = ranges[0][0], ranges[-1]
        if found.until < end:
            # The lane goes no further than its log was read, but it does go that far, if only over markers.
            until = max(first, found.until)
            if (bad := found.damage) is not None and bad.next is not None and ordered(place, bad):
                left_out[place] = (max(bad.offset, first), bad.next)
                until = bad.next
            elif bad is not None:
                damaged[place] = bad
            cut = bisect_left(delivered, until, key=_OFFSET)
            delivered, rest[place] = delivered[:cut], delivered[cut:]
            covered[place] = until
        records[place] = list(merge(delivered, found.records, key=_OFFSET)) if found.records else delivered
        if found.log_start <= first:
            examined.add(place)
    return Portion(
        batch=Batch(records=records, covered=covered, left_out=left_out),
        damaged=damaged,
        examined=frozenset(examined),
        rest=Batch(records=rest) if rest else None,
    )
