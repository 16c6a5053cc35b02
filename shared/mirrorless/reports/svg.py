"""How is a plot drawn? Shapes of inline SVG in CSS pixels; colours are the page's, by class."""

from __future__ import annotations

from collections.abc import Iterable

from mirrorless.reports.writing import text

WIDTH = 848
"""Of every plot; the page scales it down where it is narrower."""

LETTER = 6.6
"""About the width of a letter in a plot, for what must be fitted before a browser measures it."""


def picture(height: float, parts: Iterable[str], *, title: str, told: str, name: str) -> str:
    """The whole picture.

    Args:
        height: of it.
        parts: what is drawn, from back to front.
        title: what it is called.
        told: what it shows, for who does not see it.
        name: an id that is unique on the page.
    """
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-title {name}-told">'
        f'<title id="{name}-title">{text(title)}</title><desc id="{name}-told">{text(told)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def rect(x: float, y: float, width: float, height: float, kind: str, *, tip: str = "") -> str:
    """A filled rectangle."""
    box = f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}" class="{kind}"'
    return f"{box}><title>{text(tip)}</title></rect>" if tip else f"{box}/>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def path(points: Iterable[tuple[float, float]], kind: str) -> str:
    """A line through points."""
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="{kind}"/>'


def dot(x: float, y: float, kind: str, *, tip: str = "") -> str:
    """A point."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" class="{kind}"><title>{text(tip)}</title></circle>'


def words(x: float, y: float, content: str, kind: str = "", *, anchor: str = "start", fit: float = 0) -> str:
    """A line of text. Args: fit: pixels that it has; what does not fit is cut, and shown whole when pointed at."""
    shown, tip = content, ""
    if fit and len(content) * LETTER > fit:
        shown, tip = content[: max(1, int(fit / LETTER) - 1)] + "…", f"<title>{text(content)}</title>"
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{text(shown)}{tip}</text>'
