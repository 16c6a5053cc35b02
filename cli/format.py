"""How do we write moments and numbers for people?"""

from __future__ import annotations

from datetime import UTC, datetime


def moment(ms: int) -> str:
    """A moment in UTC, to the second. `ms` since the epoch."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(ms: int, *, now: int) -> str:
    """How long ago a moment was, roughly. Both in ms since the epoch; a clock that is ahead counts as just now."""
    seconds = max(0, now - ms) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def duration(ms: int) -> str:
    """How long something takes or took, in at most six characters: `0 s`, `0.3 s`, `42 s`, `3 min`, `5 h`, `2 d`."""
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 -- below it, tenths matter


def numbered(count: int, noun: str) -> str:
    """`1 lane`, `2,000 lanes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: float) -> str:
    """Bytes, for people: `512 B`, `1.2 GB`."""
    for each, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count:.0f} B"
