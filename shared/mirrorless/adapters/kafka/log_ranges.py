"""Ranges of offsets of many partitions of a log, side by side: each in turn, to its end, or until there is enough.

Gaps are mostly transaction markers, a few records apart: ranges that are near each other are read through in one go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mirrorless.adapters.kafka.client import LEAST_SECONDS, MARGIN_SECONDS
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import Arrivals, BoundedLog, Log
from mirrorless.records.record import Record

Range = tuple[int, int]
"""Offsets [first, next)."""

TO_THE_END: Final = 2**62
"""For the end of a range that is read to the log's."""

MANY: Final = 2**31

AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Taken from the log in one call."""

POLL_SECONDS: Final = 0.5

LIST_SECONDS: Final = 5.0
"""For a question where logs begin or end."""


@dataclass(slots=True)
class RangePart:
    """What has come of the ranges of one partition since the part before."""

    place: TopicPartition
    records: Sequence[Any]
    """Records, or whole batches from a log that is read by them: those that reach into a range."""
    until: int
    """All of the ranges below this offset was read; -1 for nothing."""
    log_start: int = 0
    """Where the log begins, if that is above the beginning of a range: what stood below is gone."""
    over: bool = False
    """Whether nothing more of it comes. Whoever has enough sets it."""
    failure: MirrorlessError | None = None
    """Why nothing more of it comes, though there is more: `BatchUnreadable` at a batch that nobody can read."""


def read_ranges(
    log: BoundedLog,
    wanted: Mapping[TopicPartition, Sequence[Range]],
    deadline: Deadline,
    *,
    near: int = 0,
    records: int = MANY,
    size: int = MANY,
) -> Generator[RangePart]:
    """Read ranges; of what is not over when this ends, time, records or bytes did not suffice.

    Args:
        log: nothing of it is followed.
        wanted: of each partition, ascending and disjoint; none is empty.
        deadline: seconds left; `MARGIN_SECONDS` are kept of it already.
        near: offsets between two ranges that are read through: a new range costs a round trip.
        records: after which reading ends.
        size: bytes after which reading ends.

    Raises:
        Retriable: the cluster does not answer. The log is to be closed then.
    """
    readings = {place: _Reading(place, ranges, near) for place, ranges in wanted.items()}
    _follow(log, readings.values())
    while readings and records > 0 and size > 0 and (left := deadline()) > 0:
        come = log.arrivals(min(left, POLL_SECONDS), records=min(records, AT_ONCE), size=min(size, BYTES_AT_ONCE))
        size -= come.bytes
        records -= sum(map(len, come.records.values()))
        places = [place for place in come.places() if place in readings]
        parts = [readings[place].take(come) for place in places]
        _look(log, [readings[place] for place in places], come, parts, deadline)
        for part in parts:
            try:
                yield part
            except GeneratorExit:
                log.leave(readings)
                raise
        _go_on(log, readings, parts)
    log.leave(readings)


def joined(ranges: Iterable[Range], near: int) -> list[Range]:
    """Ranges, growing, of which those that are near each other have become one."""
    wide: list[Range] = []
    for first, following in ranges:
        if wide and first - wide[-1][1] <= near:
            first = wide.pop()[0]  # noqa: PLW2901 -- the wider range takes its place
        wide.append((first, following))
    return wide


class _Reading:
    """How far one partition has been read."""

    def __init__(self, place: TopicPartition, wanted: Sequence[Range], near: int) -> None:
        self.place, self.wanted = place, wanted
        self.left = joined(wanted, near)
        """Still to be read; the first one is being read."""
        self.until = -1
        self.log_start = 0
        self.is_done = False
        """Whether the range that is being read is over, so that the next one begins."""
        self._reads_through = len(self.left) < len(wanted)

    def take(self, come: Arrivals) -> RangePart:
        """What came of it, and whether that is all, as far as it is known without a question."""
        place, (_, following) = self.place, self.left[0]
        records = come.records.get(place, ())
        if self._reads_through:
            records = [each for each in records if self._is_wanted(each)]
        self.passed(come.covered.get(place, -1))
        failure = come.refused.get(place) or come.unreadable.get(place)
        if (bad := come.unreadable.get(place)) is not None:
            self.passed(bad.offset)
            failure = failure if self.until < following else None  # it lies behind what is wanted
        elif place in come.truncated:
            what = f"the log was cut off at {come.truncated[place]} while it was read"
            failure = Retriable(what, where=f"{place[0]}-{place[1]}")
        self.is_done = self.until >= following or come.ended.get(place, -1) >= following
        if self.is_done:
            self.passed(following)
            self.left.pop(0)
        return self._part(records, failure)

    def ends(self, end: int) -> None:
        """Nothing is left to come but below this offset."""
        self.passed(end)
        self.left.clear()

    def begins(self, log_start: int) -> None:
        """Leave out what lies below the beginning of the log."""
        self.log_start, self.is_done = log_start, True
        self.left = [(max(first, log_start), following) for first, following in self.left if following > log_start]
        self.until = max(self.until, min(log_start, self.wanted[-1][1]))

    def passed(self, offset: int) -> None:
        """All below this offset was read, of the range that is being read."""
        if offset >= 0:
            self.until = max(self.until, min(offset, self.left[0][1]))

    def _part(self, records: Sequence[Any], failure: MirrorlessError | None) -> RangePart:
        over = failure is not None or not self.left
        return RangePart(self.place, records, self.until, self.log_start, over=over, failure=failure)

    def _is_wanted(self, each: Any) -> bool:
        is_record = isinstance(each, Record)
        first, following = (each.offset, each.offset + 1) if is_record else (each.base_offset, each.next)
        at = bisect_right(self.wanted, following - 1, key=lambda some: some[0]) - 1
        return at >= 0 and first < self.wanted[at][1]


def _look(
    log: BoundedLog, readings: Sequence[_Reading], come: Arrivals, parts: Sequence[RangePart], deadline: Deadline
) -> None:
    """Find out of logs that seem to end, or to begin, elsewhere than is wanted, whether they do."""
    doubtful = [
        (reading, part)
        for reading, part in zip(readings, parts, strict=True)
        if not part.over and not reading.is_done and (part.place in come.ended or part.place in come.out_of_range)
    ]
    left = min(deadline(), LIST_SECONDS)
    if not doubtful or left < LEAST_SECONDS:
        return
    beyond = [part.place for _, part in doubtful if part.place in come.out_of_range]
    starts: Mapping[TopicPartition, int] = {}
    try:
        ends = log.stable_ends([part.place for _, part in doubtful], lambda: left + MARGIN_SECONDS)
        if beyond:
            starts = log.starts(beyond, lambda: left + MARGIN_SECONDS)
    except Retriable:
        return  # what is read of others must not be lost: this is not over when the time is
    for reading, part in doubtful:
        place, (first, _) = part.place, reading.left[0]
        if (end := ends.get(place)) is None or (place in beyond and place not in starts):
            continue  # nobody says: it has no leader, or one that was just elected
        if place in come.ended:
            # A leader that was just elected shows less than it has, and says so to whoever lists its offsets (KIP-207).
            if end > come.ended[place]:
                continue
            reading.ends(come.ended[place])  # the log ends here, or an open transaction hides the rest
        elif starts[place] > first:
            reading.begins(starts[place])
        elif end < first:
            reading.ends(end)
        else:
            part.failure = Retriable("the log has changed while it was read", where=f"{place[0]}-{place[1]}")
        part.until, part.log_start = reading.until, reading.log_start
        part.over = not reading.left or part.failure is not None


def _follow(log: Log, readings: Iterable[_Reading]) -> None:
    begun = {reading.place: reading.left[0] for reading in readings}
    log.follow(
        {place: first for place, (first, _) in begun.items()},
        {place: following for place, (_, following) in begun.items()},
    )


def _go_on(log: Log, readings: dict[TopicPartition, _Reading], parts: Iterable[RangePart]) -> None:
    """Leave what is over, and begin the next ranges."""
    over = [part.place for part in parts if part.over]
    following = [part.place for part in parts if not part.over and readings[part.place].is_done]
    if over or following:
        log.leave([*over, *following])
    for place in over:
        del readings[place]
    _follow(log, [readings[place] for place in following])
    for place in following:
        readings[place].is_done = False
