"""Records that no event can carry, found before anything behind them is written.

A mapping leaves out such a record, and delivers what follows. So where a flow stops at them, the gaps of a batch are
read at the source before it is planned, from the lane's position up to the batch's last record. A large record there,
or a batch that nobody can read, stops the lane. Whatever else makes a gap is explained afterwards, as in any flow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from mirrorless.chain.lane_state import NEW_LANE, Head, LaneState, Stop
from mirrorless.clock import Deadline
from mirrorless.ports.kafka import CommittedLog, RangesRead, TopicPartition
from mirrorless.protocol.admission import Waiting
from mirrorless.protocol.event import Batch
from mirrorless.records.record import Record, event_bytes, size_of

READ_BYTES: Final = 8_000_000
"""Of records in gaps, after which reading ends; one record comes whole."""

LARGE_BYTES: Final = 3 * 1024 * 1024
"""In an event, which has 6 MB at most. What AWS adds around a record is not documented, so one of half of it that was
left out was too large."""

NEAR_BYTES: Final = 256 * 1024
"""Between two gaps that are read through, about."""

_OFFSET = attrgetter("offset")

Held = dict[TopicPartition, Stop | Waiting]
"""Why lanes go no further; those that wait come again, for their gaps are still to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredRecords:
    """Looks for them in the gaps of batches."""

    log: CommittedLog
    """The source's."""
    from_log_start: bool
    """Whether a lane without a chain begins with its log, see `gaps_of_batch`."""

    def before(
        self, batch: Batch, lanes: Mapping[TopicPartition, tuple[Head, LaneState]], deadline: Deadline, *, now: int
    ) -> tuple[Batch, Held]:
        """What of a batch lies before them, and the lanes that go no further.

        Args:
            batch: an event's records.
            lanes: those that may move: the ends of their chains, none in doubt, and their states.
            deadline: seconds until Lambda kills us.
            now: ms since the epoch.

        Raises:
            Retriable: the source does not answer.
        """
        found = {
            place: gaps_of_batch(head, state, batch.records_of(place), from_log_start=self.from_log_start)
            for place, (head, state) in lanes.items()
        }
        gaps = {place: ranges for place, ranges in found.items() if ranges}
        if not gaps:
            return batch, {}
        near = near_offsets(batch.records_of(place) for place in gaps)
        read = self.log.read(gaps, deadline, near=near, size=READ_BYTES)
        held: Held = {}
        for place, ranges in gaps.items():
            if (stop := undelivered_stop(read[place], LARGE_BYTES, now=now)) is not None:
                held[place] = stop
            elif read[place].until < ranges[-1][1]:
                held[place] = Waiting(
                    upstream_offset=max(ranges[0][0], read[place].until),
                    detail="the source did not show in time what stands in a gap of this batch",
                    hint="if it stays, check that the function reaches the source's brokers and may read this topic",
                )
        ends = {place: each.upstream_offset for place, each in held.items()}
        kept = {place: _below(batch.records_of(place), at) for place, at in ends.items()}
        return replace(batch, records={**batch.records, **kept}, covered={**batch.covered, **ends}), held


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


def undelivered_stop(read: RangesRead, most: int, *, now: int) -> Stop | None:
    """The stop of a lane at what its mapping does not deliver; None where there is no such thing.

    Args:
        read: what stands where the mapping delivers nothing.
        most: bytes in an event that a record may have.
        now: ms since the epoch.
    """
    record = next((each for each in read.records if event_bytes(each) > most), None)
    if record is not None:
        at, what = record.offset, f"record here, of {size_of(record):,} bytes: {event_bytes(record):,} in an event, "
        what += "which has 6 MB at most"
    elif read.damage is not None:
        at, what = read.damage.offset, f"batch here, which nobody can read: {read.damage.what}"
    else:
        return None
    return Stop(reason="undelivered", upstream_offset=at, detail=f"its mapping does not deliver the {what}", at=now)


def _below(records: Sequence[Record], at: int) -> Sequence[Record]:
    return records[: bisect_left(records, at, key=_OFFSET)]
