"""Shapes of inline SVG as plain values, in CSS pixels. The page's template writes them; colours are classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

WIDTH = 848
"""Of every plot; the page scales it down where it is narrower."""

LETTER = 6.6
"""About the width of a letter in a plot, for what must be fitted before a browser measures it."""


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
