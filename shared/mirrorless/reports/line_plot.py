"""Line plots: lines over one x axis, each with its name at its end instead of a legend."""

from __future__ import annotations

from math import isfinite

from mirrorless.reports import svg
from mirrorless.reports.format import number, short
from mirrorless.reports.report import LinePlot
from mirrorless.reports.svg import LEAST, Scale, scale

TOP, HEIGHT = 26, 240
LEFT = 62
NAMES = (30, 200)
"""The least and the greatest width of the names behind the lines, in pixels."""

APART = 20
"""Between two names."""

COLOURS = 6
"""The page's; then they begin again."""

DOTS = 40
"""The longest line whose points are marked: more marks would touch."""

Points = list[tuple[float, float]]


def draw_lines(plot: LinePlot) -> svg.Drawing:
    """The shapes of a plot."""
    shown = [_shown(plot, index) for index in range(len(plot.lines))]
    longest = max((len(each.label) for each in plot.lines), default=0)
    right = svg.WIDTH - min(max(longest * svg.LETTER * svg.NARROW + 16, NAMES[0]), NAMES[1])
    reach = [x for points in shown for x, _ in points] + list(plot.x_range or ())
    across = scale(reach, LEFT, right, log=plot.log_x)
    up = scale((y for points in shown for _, y in points), TOP + HEIGHT, TOP, log=plot.log_y, zero=not plot.log_y)
    parts = _axes(plot, across, up)
    for index, (line, points) in enumerate(zip(plot.lines, shown, strict=True)):
        colour = f"line-{index % COLOURS}"
        placed = [(across.at(x), up.at(y)) for x, y in points]
        parts.append(svg.path(placed, colour))
        if len(points) <= DOTS:
            parts += [
                svg.dot(at_x, at_y, f"dot-{index % COLOURS}", tip=f"{line.label}: {number(y)} at {number(x)}")
                for (at_x, at_y), (x, y) in zip(placed, points, strict=True)
            ]
    parts += _names(plot, shown, up, right)
    return svg.Drawing(height=TOP + HEIGHT + 46, shapes=tuple(parts), description=_described(plot, shown))


def not_shown(plot: LinePlot) -> str:
    """The number of points that a logarithmic axis cannot show, in words; empty where all are shown."""
    count = sum(len(line.points) - len(_shown(plot, index)) for index, line in enumerate(plot.lines))
    return f"{number(count)} of the points are zero or less, which a logarithmic axis cannot show." if count else ""


def _shown(plot: LinePlot, index: int) -> Points:
    found = ((x, y) for x, y in plot.lines[index].points if isfinite(x) and isfinite(y))
    return [(x, y) for x, y in found if (x >= LEAST or not plot.log_x) and (y >= LEAST or not plot.log_y)]


def _axes(plot: LinePlot, across: Scale, up: Scale) -> list[svg.Shape]:
    bottom = TOP + HEIGHT
    parts = [svg.words(0, 12, plot.y_unit, "unit")]
    for tick in up.ticks():
        parts.append(svg.line(across.begin, up.at(tick), across.end, up.at(tick), "zero" if tick == 0 else "grid"))
        parts.append(svg.words(LEFT - 8, up.at(tick) + 4, short(tick), "tick", anchor="end"))
    for tick in across.ticks():
        parts.append(svg.line(across.at(tick), bottom, across.at(tick), bottom + 4, "axis"))
        parts.append(svg.words(across.at(tick), bottom + 18, short(tick), "tick", anchor="middle"))
    parts.append(svg.line(across.begin, bottom, across.end, bottom, "axis"))
    parts.append(svg.words(across.end, bottom + 38, plot.x_unit, "unit", anchor="end"))
    return parts


def _names(plot: LinePlot, shown: list[Points], up: Scale, right: float) -> list[svg.Shape]:
    """Each name at the end of its line; names that would touch are moved apart, downwards."""
    ends = sorted((up.at(points[-1][1]), index) for index, points in enumerate(shown) if points)
    parts: list[svg.Shape] = []
    lowest = float(TOP - APART)
    room = TOP + HEIGHT - APART * len(ends)
    for order, (at, index) in enumerate(ends):
        lowest = max(lowest + APART, min(at, room + APART * (order + 1)))
        kind = f"name-{index % COLOURS}"
        parts.append(svg.words(right + 8, lowest + 4, plot.lines[index].label, kind, fit=svg.WIDTH - right - 8))
    return parts


def _described(plot: LinePlot, shown: list[Points]) -> str:
    lines = []
    for line, points in zip(plot.lines, shown, strict=True):
        if points:
            (x, y), (last_x, last_y) = points[0], points[-1]
            highest = max(each for _, each in points)
            lines.append(
                f"{line.label} from {number(y)} at {number(x)} to {number(last_y)} at {number(last_x)}, "
                f"at most {number(highest)}"
            )
    return f"{plot.y_unit} by {plot.x_unit}: {'; '.join(lines)}."
