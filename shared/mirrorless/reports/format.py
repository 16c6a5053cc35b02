"""Numbers, moments and text as pages and commands show them. Markup in text is escaped by the page's template."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from mirrorless.reports.report import Cell

DIGITS = 3
"""Significant ones of a number with a fraction: a fourth is seldom true."""

MINUS, NOTHING = "\u2212", "\u2013"

_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # what a terminal obeys, and line ends
    r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # what turns or ends a line, or has no width
    r"\ud800-\udfff\ufffe\uffff\U000e0000-\U000e007f]"  # what UTF-8 or HTML may not hold, and tags
)


def visible(text: str) -> str:
    r"""Text from elsewhere as one line that a terminal, a log or a page obeys nothing of: `\n`, `\x1b`, `\u202e`."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def visible_lines(text: str) -> str:
    """The same of text that has line ends of its own."""
    return "\n".join(map(visible, text.split("\n")))


def cell(value: Cell) -> str:
    """The content of a cell."""
    match value:
        case None:
            return NOTHING
        case str():
            return value
        case _:
            return number(value)


def number(value: float) -> str:
    """`1,234,567`, `149,032`, `12.3`, `0.00123`: whole numbers whole, others with three significant digits."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
        return _signed(f"{int(value):,}")
    if not math.isfinite(value):
        return NOTHING
    before = math.floor(math.log10(abs(value))) + 1
    written = f"{value:,.{max(0, DIGITS - before)}f}"
    return _signed(written.rstrip("0").rstrip(".") if "." in written else written)


def short(value: float) -> str:
    """A number at an axis: `250k`, `1.5M`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return number(value / size) + unit
    return number(value)


def numbered(count: int, noun: str) -> str:
    """A count with its noun: `1 lane`, `2,000 lanes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def moment(ms: int) -> str:
    """A moment in UTC, to the second. `ms` since the epoch."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _signed(written: str) -> str:
    return written.replace("-", MINUS, 1)
