"""The causes of gaps: upstream offsets that a lane has passed without a record.

    below the source's log start      it cannot be read any more: `retention`, or `truncation`
    a read_committed reader sees it   it was never forwarded: `oversize`, or `unexplained`
    only read_uncommitted sees it     `aborted`
    neither sees a record             `compaction` on a compacted topic, otherwise `transaction_marker`

The first two rows are losses, the others are harmless. Pure: reads of the source come in, explained pieces come out;
an offset that was not read gets no explanation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mirrorless.chain.losses import ExplainedGap, GapCause
from mirrorless.chain.run import Run, without
from mirrorless.clock import Deadline
from mirrorless.ports.kafka import TopicPartition

GapRange = tuple[int, int]
"""Upstream offsets [first, next)."""

EVENT_BYTES: Final = 6 * 1024 * 1024
"""Bytes of one event as JSON, at most: Lambda's quota.
(https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html)"""

MOST_BYTES: Final = EVENT_BYTES - 1024
"""Of a record in an event: the rest is for the cluster's addresses, the topic twice, the offset."""

FOR_EVER: Final = "-1"
"""A topic config's value for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """The cleanup of a topic."""

    compacts: bool
    expires: bool
    """Whether it deletes old segments, by time or by size."""


def cleanup_of(configs: Mapping[str, str | None]) -> Cleanup:
    """Read a topic's effective configs: `cleanup.policy`, `retention.ms`, `retention.bytes`."""
    policy = {each.strip() for each in (configs.get("cleanup.policy") or "").split(",")}
    finite = any(configs.get(name) not in {FOR_EVER, None} for name in ("retention.ms", "retention.bytes"))
    return Cleanup(compacts="compact" in policy, expires="delete" in policy and finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one reader for some ranges, in order."""

    until: int
    """All of the ranges below this upstream offset was read."""
    visible: Mapping[int, int]
    """Offsets with a record, ascending, and the bytes of each in an event."""
    trouble: str = ""
    """Why reading ended early, other than time and size."""


UNREAD: Final = Look(until=-1, visible={})


class LogLooks(Protocol):
    """Looks at which records stand in a cluster's logs."""

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> Mapping[TopicPartition, Look]:
        """Read ranges of several partitions in parallel, within limits of time, records and bytes.

        Args:
            ranges: of each partition, ascending and disjoint.
            committed: whether to read as read_committed, or as read_uncommitted.
            deadline: seconds that are left.

        Raises:
            Retriable: the cluster does not answer.
        """
        ...


class SourceLog(LogLooks, Protocol):
    """The log of the source cluster, beside the events. Every method raises Retriable when it does not answer."""

    def starts(self, places: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, int]:
        """The first offset of each partition's log; partitions that do not exist are left out."""
        ...

    def cleanup(self, topics: Sequence[str], deadline: Deadline) -> Mapping[str, Cleanup]:
        """The cleanup of each topic; topics that cannot be described are left out."""
        ...


def gaps_of(run: Run, since: int) -> list[GapRange]:
    """The ranges of a run, from an upstream offset on, that need an explanation.

    Ranges that a job has examined need none, nor do quarantined offsets, records that returned, and what a rule left
    out. The offsets before the first record of a lane are not a gap: the flow's `start` decides where it begins, and a
    lane's first run has position 0 wherever its first record is.
    """
    if run.examined:
        return []
    explained = sorted([*((offset, offset + 1) for offset in run.quarantined), *run.returned, *run.filtered])
    ranges = without(tuple(run.gaps()), explained)
    before_the_lane = run.generation == run.position == 0
    return [(first, following) for first, following in clipped(ranges, since) if not (before_the_lane and first == 0)]


def clipped(gaps: Iterable[GapRange], since: int) -> list[GapRange]:
    """The parts of the gaps at or above an upstream offset."""
    return [(max(first, since), following) for first, following in gaps if following > since]


def to_confirm(gaps: Sequence[GapRange], uncommitted: Look) -> list[GapRange]:
    """The ranges to read as read_committed: those with a record, which may be an aborted one."""
    offsets = list(uncommitted.visible)
    ranges = []
    for first, following in gaps:
        inside = offsets[bisect_left(offsets, first) : bisect_left(offsets, following)]
        if inside:
            ranges.append((inside[0], inside[-1] + 1))
    return ranges


def explain(
    gaps: Sequence[GapRange], *, start: int, cleanup: Cleanup, uncommitted: Look, committed: Look
) -> tuple[list[ExplainedGap], int | None]:
    """Explain the gaps in order, up to the first offset that was not read.

    The read_uncommitted read must be the earlier one: records below it can vanish, but none can appear. A record that
    compaction removes between the two reads seems to be aborted; either is harmless.

    Args:
        gaps: ascending and disjoint.
        start: the source's log start offset, read before the records.
        cleanup: of the topic.
        uncommitted: the read_uncommitted read.
        committed: the read_committed read, where the other has records.

    Returns:
        the pieces, and the first upstream offset without an explanation; None when all is explained.
    """
    pieces: list[ExplainedGap] = []
    blank: GapCause = "compaction" if cleanup.compacts else "transaction_marker"
    removed: GapCause = "retention" if cleanup.expires else "truncation"
    offsets = list(uncommitted.visible)
    for gap_first, following in gaps:
        first = gap_first
        if first < start:
            _add(pieces, first, min(following, start), removed)
            first = min(following, start)
        for offset in offsets[bisect_left(offsets, first) : bisect_left(offsets, following)]:
            _add(pieces, first, offset, blank)
            if offset >= committed.until:
                return pieces, offset
            _add(pieces, offset, offset + 1, never_forwarded(committed.visible.get(offset)))
            first = offset + 1
        read_to = min(following, max(uncommitted.until, first))
        _add(pieces, first, read_to, blank)
        if read_to < following:
            return pieces, read_to
    return pieces, None


def never_forwarded(size: int | None) -> GapCause:
    """Why no event brought a record. Args: size: see `event_bytes`; None: a read_committed reader skips it."""
    if size is None:
        return "aborted"
    return "oversize" if size > MOST_BYTES else "unexplained"


def _add(pieces: list[ExplainedGap], first: int, following: int, cause: GapCause) -> None:
    if first >= following:
        return
    if pieces and pieces[-1].next == first and pieces[-1].cause == cause:
        first = pieces.pop().first
    pieces.append(ExplainedGap(first=first, next=following, cause=cause))
