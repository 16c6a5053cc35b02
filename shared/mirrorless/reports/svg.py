"""Shapes of inline SVG as plain values, in CSS pixels, and the axes that place them: linear and logarithmic.

The page's template writes the shapes; colours are classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

WIDTH = 848
"""Of every plot; the page scales it down where it is narrower."""

LETTER = 6.6
"""About the width of a letter in a plot, for what must be fitted before a browser measures it."""

NARROW = 19 / 12
"""How much larger letters are on a narrow screen, beside the shapes; see the page's style."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One element."""

    tag: Literal["rect", "line", "polyline", "circle", "text"]
    attributes: Mapping[str, str]
    text: str = ""
    tip: str = ""
    """Shown when pointed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One picture."""

    height: float
    shapes: tuple[Shape, ...]
    """From back to front."""
    description: str
    """The same in words, for a reader who does not see it."""


def rect(x: float, y: float, width: float, height: float, kind: str, *, tip: str = "") -> Shape:
    """A filled rectangle."""
    return Shape(tag="rect", attributes={**_at(x=x, y=y, width=max(0.0, width), height=height), "class": kind}, tip=tip)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Shape:
    """A straight line."""
    return Shape(tag="line", attributes={**_at(x1=x1, y1=y1, x2=x2, y2=y2), "class": kind})


def path(points: Iterable[tuple[float, float]], kind: str) -> Shape:
    """A line through points."""
    return Shape(tag="polyline", attributes={"points": " ".join(f"{x:.1f},{y:.1f}" for x, y in points), "class": kind})


def dot(x: float, y: float, kind: str, *, tip: str = "") -> Shape:
    """A point."""
    return Shape(tag="circle", attributes={**_at(cx=x, cy=y, r=2.6), "class": kind}, tip=tip)


def words(x: float, y: float, content: str, kind: str = "", *, anchor: str = "start", fit: float = 0) -> Shape:
    """A line of text. Args: fit: pixels that it has; what does not fit is cut, and shown whole when pointed at."""
    shown, tip = content, ""
    if fit and len(content) * LETTER > fit:
        shown, tip = content[: max(1, int(fit / LETTER) - 1)] + "…", content
    return Shape(tag="text", attributes={**_at(x=x, y=y), "class": kind, "text-anchor": anchor}, text=shown, tip=tip)


def _at(**pixels: float) -> dict[str, str]:
    return {name: f"{value:.1f}" for name, value in pixels.items()}


MOST_STEPS = 6

SAME = 1e-9
"""Values that differ by so small a part of them are one point of an axis."""

LEAST = 1e-300
"""On a logarithmic axis: below it, powers of ten are no numbers of the machine."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` at pixel `begin` to `high` at pixel `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value. On a logarithmic axis, of a positive one."""
        low, high, here = (math.log10(each) if self.log else each for each in (self.low, self.high, value))
        share = (here - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round values within the axis, growing."""
        return _decades(self.low, self.high) if self.log else _steps(self.low, self.high)


def scale(values: Iterable[float], begin: float, end: float, *, log: bool = False, zero: bool = False) -> Scale:
    """An axis that holds these values and ends at round ones.

    Args:
        values: of the points; on a logarithmic one, `LEAST` or more.
        begin: the pixel of its low end.
        end: the pixel of its high end.
        log: whether it is logarithmic.
        zero: whether it begins at zero, where no value is below.
    """
    known = list(values) or [1.0]
    low, high = min(known), max(known)
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        return Scale(low, high if high > low else low * 10, begin, end, log=True)
    low = min(0.0, low) if zero else low
    if high - low <= max(LEAST, abs(low) * SAME, abs(high) * SAME):
        high = low + max(abs(low), 1.0)
    step = _step(low, high)
    low, high = min(low, math.floor(low / step) * step), max(high, math.ceil(high / step) * step)
    return Scale(low, high, begin, end)


def _step(low: float, high: float) -> float:
    rough = (high - low) / MOST_STEPS
    decade = 10.0 ** math.floor(math.log10(rough))
    return next((factor * decade for factor in (1, 2, 5) if factor * decade >= rough), 10 * decade)


def _steps(low: float, high: float) -> list[float]:
    step = _step(low, high)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)  # noqa: PLR2004 -- more decades would stand too close
    every = math.ceil((last - first + 1) / 8)
    found = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    return [value for value in found if value <= high]
