"""What explains a gap: an upstream offset that a lane has passed without a record? Nothing is classified by guess.

    below the source's log start      nothing can be read any more: `retention`, or `truncation`
    a read_committed reader sees it   it was never forwarded: `oversize`, or `unexplained`
    only read_uncommitted sees it     `aborted`
    nobody sees anything              `compaction` on a compacted topic, otherwise `transaction_marker`

The first two rows are losses, the others are harmless. Pure: what was read of the source comes in, pieces come out;
where nothing was read yet, no piece comes out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mirrorless.losses import ExplainedGap, GapCause
from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.record import Record
from mirrorless.run import Run

GapRange = tuple[int, int]
"""Upstream offsets [first, next)."""

EVENT_BYTES: Final = 6 * 1024 * 1024
"""What one event may have as JSON: Lambda's quota.
(https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html)"""

ENVELOPE_BYTES: Final = 1024
"""Kept for what an event says around a record: the cluster's addresses, the topic twice, the offset."""

FOR_EVER: Final = "-1"
"""How a topic says that it has no limit of this kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What removes records from a topic by itself."""

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
    """What one reader saw of the ranges that it was asked to read, in order."""

    until: int
    """Of what was asked, everything below this upstream offset was read."""
    visible: Mapping[int, int]
    """Offsets with a record, growing, and how many bytes each takes in an event."""
    trouble: str = ""
    """Why reading ended early, where time and size were not the reason."""


UNREAD: Final = Look(until=-1, visible={})


class SourceLog(Protocol):
    """The log of the source cluster, beside the events. Every method raises Retriable when it does not answer."""

    def starts(self, places: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, int]:
        """The first offset of each partition's log; partitions that do not exist are left out."""
        ...

    def cleanup(self, topics: Sequence[str], deadline: Deadline) -> Mapping[str, Cleanup]:
        """What removes records of each topic; topics that cannot be described are left out."""
        ...

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> Mapping[TopicPartition, Look]:
        """Read ranges, all places side by side, as far as a bound on time, records and bytes allows.

        Args:
            ranges: of each partition, growing and apart.
            committed: whether a read_committed reader looks, or a read_uncommitted one.
            deadline: seconds that are left.
        """
        ...


def gaps_of(run: Run, since: int) -> list[GapRange]:
    """The ranges of a run, from an upstream offset on, that want an explanation.

    What a job has examined has one, and what the operator left out. What lies before the very first record of a lane
    was never the lane's: where it begins is said by the flow's `start`, and a lane's first run stands at 0 wherever its
    first record does.
    """
    if run.examined:
        return []
    ranges = []
    for first, following in run.gaps():
        at = first
        for left_out in (each for each in sorted(run.quarantined) if first <= each < following):
            ranges.append((at, left_out))
            at = left_out + 1
        ranges.append((at, following))
    before_the_lane = run.generation == run.position == 0
    return [
        (first, following)
        for first, following in clipped(ranges, since)
        if first < following and not (before_the_lane and first == 0)
    ]


def clipped(gaps: Iterable[GapRange], since: int) -> list[GapRange]:
    """What of the gaps lies at or above an upstream offset."""
    return [(max(first, since), following) for first, following in gaps if following > since]


def to_confirm(gaps: Sequence[GapRange], seen: Look) -> list[GapRange]:
    """What a read_committed reader has to look at: only where a record is, and it may be an aborted one."""
    offsets = list(seen.visible)
    ranges = []
    for first, following in gaps:
        inside = offsets[bisect_left(offsets, first) : bisect_left(offsets, following)]
        if inside:
            ranges.append((inside[0], inside[-1] + 1))
    return ranges


def explain(
    gaps: Sequence[GapRange], *, start: int, cleanup: Cleanup, seen: Look, committed: Look
) -> tuple[list[ExplainedGap], int | None]:
    """Say of each gap what it was, in order, up to the first offset that was not read.

    The read_uncommitted look must be the earlier one: records below it can vanish, but none can appear. A record that
    compaction removes between the two looks as if it had been aborted; either is harmless.

    Args:
        gaps: growing and apart.
        start: the source's log start offset, read before the looks.
        cleanup: what removes records of the topic.
        seen: what a read_uncommitted reader saw.
        committed: what a read_committed reader saw, where the other saw something.

    Returns:
        the pieces, and the upstream offset from which on nothing is known yet; None when all is explained.
    """
    pieces: list[ExplainedGap] = []
    blank: GapCause = "compaction" if cleanup.compacts else "transaction_marker"
    removed: GapCause = "retention" if cleanup.expires else "truncation"
    offsets = list(seen.visible)
    for gap_first, following in gaps:
        first = gap_first
        if first < start:
            _add(pieces, first, min(following, start), removed)
            first = min(following, start)
        for offset in offsets[bisect_left(offsets, first) : bisect_left(offsets, following)]:
            _add(pieces, first, offset, blank)
            if offset >= committed.until:
                return pieces, offset
            _add(pieces, offset, offset + 1, _never_forwarded(committed.visible.get(offset)))
            first = offset + 1
        read_to = min(following, max(seen.until, first))
        _add(pieces, first, read_to, blank)
        if read_to < following:
            return pieces, read_to
    return pieces, None


def event_bytes(record: Record) -> int:
    """How many bytes an event's JSON takes for a record: base64, and each byte of a header as a signed number."""
    content = sum(4 * ((len(part) + 2) // 3) for part in (record.key, record.value) if part is not None)
    headers = sum(len(name) + 7 + sum(map(_DIGITS.__getitem__, value or b"")) for name, value in record.headers)
    return content + headers


_DIGITS: Final = tuple(len(str(byte if byte < 128 else byte - 256)) + 1 for byte in range(256))  # noqa: PLR2004 -- Java's bytes are signed


def _never_forwarded(size: int | None) -> GapCause:
    if size is None:
        return "aborted"
    return "oversize" if size > EVENT_BYTES - ENVELOPE_BYTES else "unexplained"


def _add(pieces: list[ExplainedGap], first: int, following: int, cause: GapCause) -> None:
    if first >= following:
        return
    if pieces and pieces[-1].next == first and pieces[-1].cause == cause:
        first = pieces.pop().first
    pieces.append(ExplainedGap(first=first, next=following, cause=cause))
