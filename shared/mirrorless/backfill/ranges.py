"""The upstream offsets that two bounds mean in one partition. Pure: the log's extent comes in, a range comes out."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRange:
    """A requested range, and the part of it that can be read."""

    first: int
    """The requested offset, also where the log begins above it."""
    range: OffsetRange
    """Clipped to the log's extent, and to what a read_committed reader sees; may be empty."""


def resolve(
    start: Bound, end: Bound, extent: OffsetRange, *, start_at: int | None = None, end_at: int | None = None
) -> RequestedRange:
    """Resolve the range between two bounds.

    Args:
        start: inclusive.
        end: exclusive.
        extent: the log's first offset and its stable end.
        start_at: for a start by timestamp, the cluster's first offset at or after it; None or negative
            where there is none.
        end_at: the same for an end by timestamp.
    """
    first = _offset(start, extent, start_at)
    following = min(_offset(end, extent, end_at), extent.next)
    readable = max(first, extent.first)
    return RequestedRange(first=first, range=OffsetRange(readable, max(readable, following)))


def _offset(bound: Bound, extent: OffsetRange, at: int | None) -> int:
    match bound.kind:
        case "earliest":
            return extent.first
        case "latest":
            return extent.next
        case "offset":
            return bound.value
        case "timestamp":
            return extent.next if at is None or at < 0 else at
