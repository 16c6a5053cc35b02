"""Numbers, moments and text as a page shows them. Markup in text is escaped by the page's template."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from mirrorless.reports.report import Cell

DIGITS = 3
"""Significant ones of a number with a fraction: a fourth is seldom true."""

MINUS, NOTHING = "\u2212", "\u2013"

_PICTURES = {code: 0x2400 + code for code in range(32) if code not in {9, 10}} | {0x7F: 0x2421}
"""Control characters by the sign that Unicode has for each: HTML and SVG may not hold them."""


def printable(value: str) -> str:
    """Text as HTML and SVG may hold it: control characters become signs, what has no sign becomes U+FFFD."""
    shown = value.translate(_PICTURES).encode("utf-8", "replace").decode("utf-8")
    return "".join(each if _may_be_written(each) else "\ufffd" for each in shown)


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


def _may_be_written(character: str) -> bool:
    code = ord(character)
    return not (0x80 <= code < 0xA0 or code in {0xFFFE, 0xFFFF} or 0xD800 <= code < 0xE000)  # noqa: PLR2004 -- XML's
