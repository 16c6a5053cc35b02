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


def numbered(count: int, noun: str) -> str:
    """`1 lane`, `2,000 lanes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
