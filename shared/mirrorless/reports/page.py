"""The HTML page of a report, by the template `report.html.j2`: one file with its styles and plots, without scripts.

Lane plots are a strip for each lane, as long as its offsets are many; a single missing record is still visible. Line
plots are lines over one x axis, each with its name at its end instead of a legend. Shapes of inline SVG are plain
values, in CSS pixels: the template writes them, and colours are classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from mirrorless.reports.format import cell, moment, number, short, visible
from mirrorless.reports.report import Cell, LanePlot, LinePlot, Plot, Report, Segment, Table

MOST_ROWS = 200
"""Of the numbers of a plot; `report.json` has more."""


def draw(plot: Plot) -> Drawing:
    """The shapes of a plot."""
    match plot:
        case LinePlot():
            return draw_lines(plot)
        case LanePlot():
            return draw_lanes(plot)


def note_of(plot: Plot) -> str:
    """The plot's own note, and what the drawing leaves out."""
    more = ""
    match plot:
        case LinePlot():
            more = not_shown(plot)
        case LanePlot() if len(shown(plot)) < len(plot.lanes):
            count = number(len(plot.lanes))
            more = (
                f"Shown are {number(len(shown(plot)))} of {count} lanes, those with most to look at; counted are all."
            )
    return " ".join(filter(None, (plot.note, more)))


def numbers_of(plot: Plot) -> Table | None:
    """The plot as a table, to read aloud or to copy; None where it is empty or too long."""
    table = _table(plot)
    return table if 0 < len(table.rows) <= MOST_ROWS else None


def _table(plot: Plot) -> Table:
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    match plot:
        case LinePlot():
            columns = ("", plot.x_unit, plot.y_unit)
            rows = [(line.label, x, y) for line in plot.lines for x, y in line.points]
        case LanePlot():
            columns = ("lane", "first", "next", "kind")
            rows = [(lane, each.first, each.next, each.kind) for lane, segments in plot.lanes for each in segments]
    return Table(title=plot.title, columns=columns, rows=tuple(rows))


ROW, STRIP = 24, 12
LABELS = (60, 230)
ENDS = 100
"""Pixels behind the longest strip, for the offset at its end."""

THINNEST, OVER = 2.0, 3.0
"""A segment's least width in pixels, and how far a bad one stands out of its strip."""

MOST = 100
"""Lanes in one plot, worst first; the tables have all."""

COLOURS = 6
"""The page's; then they begin again."""

_BACK = ("quiet", "", "good", "bad")
"""From back to front, by tone: bad segments are drawn over their surroundings."""

Lanes = Sequence[tuple[str, tuple[Segment, ...]]]


def draw_lanes(plot: LanePlot) -> Drawing:
    """The shapes of a plot, with its legend."""
    lanes = shown(plot)
    left = min(max(max((len(label) + 2 for label, _ in lanes), default=0) * LETTER + 12, LABELS[0]), LABELS[1])
    longest = max((_end(segments) - _begin(segments) for _, segments in lanes), default=1)
    axis = scale([0, max(1, longest)], left, WIDTH - ENDS, zero=True)
    legend, top = _legend(plot, left)
    bottom = top + len(lanes) * ROW
    parts = [stroke(axis.at(tick), top - 2, axis.at(tick), bottom, "grid") for tick in axis.ticks()]
    parts += [words(axis.at(tick), bottom + 16, short(tick), "tick", anchor="middle") for tick in axis.ticks()]
    parts += legend
    for index, (label, segments) in enumerate(lanes):
        parts += _strip(plot, label, segments, top + index * ROW + 4, axis)
    parts.append(words(axis.end, bottom + 34, "offsets from where the lane begins", "unit", anchor="end"))
    return Drawing(height=bottom + 42, shapes=tuple(parts), description=_described(plot))


def shown(plot: LanePlot) -> Lanes:
    """The lanes that are drawn: those that need a look first, then those with most bad offsets, then all in order."""
    worst = sorted(plot.lanes, key=lambda lane: (lane[0] not in plot.first, -_bad(plot, lane[1])))
    return worst[:MOST]


def kinds(plot: LanePlot) -> dict[str, int | None]:
    """The kinds that are drawn or counted, in the order of their tones, then as they occur; records where counted."""
    drawn = {each.kind for _, segments in plot.lanes for each in segments if each.next > each.first}
    counted = {kind for kind, count in plot.counts.items() if count}
    order = dict.fromkeys((*plot.tones, *sorted(drawn | counted)))
    return {kind: plot.counts.get(kind) for kind in order if kind in drawn | counted}


def _strip(plot: LanePlot, label: str, segments: Sequence[Segment], top: float, axis: Scale) -> Iterable[Shape]:
    begin, end = _begin(segments), _end(segments)
    middle = top + STRIP / 2 + 4
    name = f"✗ {label}" if label in plot.first else label
    yield words(axis.begin - 10, middle, name, "name", anchor="end", fit=axis.begin - 10)
    yield rect(axis.at(0), top, axis.at(end - begin) - axis.at(0), STRIP, "ground")
    colours = _colours(plot)
    for kind in sorted(colours, key=lambda each: _BACK.index(plot.tones.get(each, ""))):
        mine = [each for each in segments if each.kind == kind and each.next > each.first]
        for x, width, first, after in _drawn(mine, begin, axis):
            tip = f"{label} {kind}: {number(first)} to {number(after - 1)}"
            over = OVER if plot.tones.get(kind) == "bad" else 0
            yield rect(x, top - over, width, STRIP + 2 * over, colours[kind], tip=tip)
    yield words(axis.at(end - begin) + 8, middle, number(end), "tick")


def _drawn(segments: Sequence[Segment], begin: int, axis: Scale) -> list[tuple[float, float, int, int]]:
    """Pixels and offsets of what is drawn; segments that would touch on the screen are joined."""
    found: list[tuple[float, float, int, int]] = []
    for each in sorted(segments, key=lambda segment: segment.first):
        x, right = axis.at(each.first - begin), axis.at(each.next - begin)
        right = max(right, x + THINNEST)
        if found and x <= found[-1][0] + found[-1][1]:
            before, width, first, after = found[-1]
            found[-1] = (before, max(width, right - before), first, max(after, each.next))
        else:
            found.append((x, right - x, each.first, each.next))
    return found


def _colours(plot: LanePlot) -> dict[str, str]:
    """The class of each kind: its tone's, or the next of the plain colours."""
    plain = [kind for kind in kinds(plot) if not plot.tones.get(kind, "")]
    return {
        kind: f"fill-{plot.tones[kind]}" if plot.tones.get(kind, "") else f"area-{plain.index(kind) % COLOURS}"
        for kind in kinds(plot)
    }


def _legend(plot: LanePlot, left: float) -> tuple[list[Shape], float]:
    """Every kind with its colour and its records, where they are counted; and the top of the plot below."""
    parts: list[Shape] = []
    x, y = left, 4.0
    colours = _colours(plot)
    for kind, count in kinds(plot).items():
        entry = _entry(kind, count)
        width = len(entry) * LETTER * NARROW + 40
        if x > left and x + width > WIDTH:
            x, y = left, y + 20
        parts.append(rect(x, y, 12, STRIP, colours[kind]))
        parts.append(words(x + 18, y + 10, entry, "name"))
        x += width
    return parts, y + 26


def _described(plot: LanePlot) -> str:
    found = ", ".join(_entry(kind, count) for kind, count in kinds(plot).items())
    return f"Offsets of {number(len(plot.lanes))} lanes by kind: {found}."


def _entry(kind: str, count: int | None) -> str:
    return kind if count is None else f"{kind}: {number(count)} record{'' if count == 1 else 's'}"


def _bad(plot: LanePlot, segments: Iterable[Segment]) -> int:
    return sum(each.next - each.first for each in segments if plot.tones.get(each.kind) == "bad")


def _begin(segments: Sequence[Segment]) -> int:
    return min((each.first for each in segments), default=0)


def _end(segments: Sequence[Segment]) -> int:
    return max((each.next for each in segments), default=0)


TOP, HEIGHT = 26, 240
LEFT = 62
NAMES = (30, 200)
"""The least and the greatest width of the names behind the lines, in pixels."""

APART = 20
"""Between two names."""

DOTS = 40
"""The longest line whose points are marked: more marks would touch."""

Points = list[tuple[float, float]]


def draw_lines(plot: LinePlot) -> Drawing:
    """The shapes of a plot."""
    shown = [_shown(plot, index) for index in range(len(plot.lines))]
    longest = max((len(each.label) for each in plot.lines), default=0)
    right = WIDTH - min(max(longest * LETTER * NARROW + 16, NAMES[0]), NAMES[1])
    reach = [x for points in shown for x, _ in points] + list(plot.x_range or ())
    across = scale(reach, LEFT, right, log=plot.log_x)
    up = scale((y for points in shown for _, y in points), TOP + HEIGHT, TOP, log=plot.log_y, zero=not plot.log_y)
    parts = _axes(plot, across, up)
    for index, (line, points) in enumerate(zip(plot.lines, shown, strict=True)):
        colour = f"line-{index % COLOURS}"
        placed = [(across.at(x), up.at(y)) for x, y in points]
        parts.append(path(placed, colour))
        if len(points) <= DOTS:
            parts += [
                dot(at_x, at_y, f"dot-{index % COLOURS}", tip=f"{line.label}: {number(y)} at {number(x)}")
                for (at_x, at_y), (x, y) in zip(placed, points, strict=True)
            ]
    parts += _names(plot, shown, up, right)
    return Drawing(height=TOP + HEIGHT + 46, shapes=tuple(parts), description=_described_lines(plot, shown))


def not_shown(plot: LinePlot) -> str:
    """The number of points that a logarithmic axis cannot show, in words; empty where all are shown."""
    count = sum(len(line.points) - len(_shown(plot, index)) for index, line in enumerate(plot.lines))
    return f"{number(count)} of the points are zero or less, which a logarithmic axis cannot show." if count else ""


def _shown(plot: LinePlot, index: int) -> Points:
    found = ((x, y) for x, y in plot.lines[index].points if isfinite(x) and isfinite(y))
    return [(x, y) for x, y in found if (x >= LEAST or not plot.log_x) and (y >= LEAST or not plot.log_y)]


def _axes(plot: LinePlot, across: Scale, up: Scale) -> list[Shape]:
    bottom = TOP + HEIGHT
    parts = [words(0, 12, plot.y_unit, "unit")]
    for tick in up.ticks():
        parts.append(stroke(across.begin, up.at(tick), across.end, up.at(tick), "zero" if tick == 0 else "grid"))
        parts.append(words(LEFT - 8, up.at(tick) + 4, short(tick), "tick", anchor="end"))
    for tick in across.ticks():
        parts.append(stroke(across.at(tick), bottom, across.at(tick), bottom + 4, "axis"))
        parts.append(words(across.at(tick), bottom + 18, short(tick), "tick", anchor="middle"))
    parts.append(stroke(across.begin, bottom, across.end, bottom, "axis"))
    parts.append(words(across.end, bottom + 38, plot.x_unit, "unit", anchor="end"))
    return parts


def _names(plot: LinePlot, shown: list[Points], up: Scale, right: float) -> list[Shape]:
    """Each name at the end of its line; names that would touch are moved apart, downwards."""
    ends = sorted((up.at(points[-1][1]), index) for index, points in enumerate(shown) if points)
    parts: list[Shape] = []
    lowest = float(TOP - APART)
    room = TOP + HEIGHT - APART * len(ends)
    for order, (at, index) in enumerate(ends):
        lowest = max(lowest + APART, min(at, room + APART * (order + 1)))
        kind = f"name-{index % COLOURS}"
        parts.append(words(right + 8, lowest + 4, plot.lines[index].label, kind, fit=WIDTH - right - 8))
    return parts


def _described_lines(plot: LinePlot, shown: list[Points]) -> str:
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


SHORT = 30
"""Characters of a cell that stay on one line."""


def render(report: Report) -> str:
    """The page. Text from topics, records and errors is escaped, and never becomes markup."""
    return _template().render(
        report=report, columns_of=columns_of, draw=draw, note_of=note_of, numbers_of=numbers_of, width=WIDTH
    )


def columns_of(table: Table) -> list[str]:
    """The class of each column: of numbers, of words too short to be broken, or none."""
    return [_class_of([row[index] for row in table.rows]) for index in range(len(table.columns))]


def _class_of(values: list[Any]) -> str:
    texts = [value for value in values if isinstance(value, str) and value]
    if not texts and any(isinstance(value, int | float) for value in values):
        return "number"
    return "short" if all(len(each) <= SHORT for each in texts) else ""


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, finalize=_printable, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"cell": cell, "moment": moment}
    return environment.from_string(files("mirrorless.reports").joinpath("report.html.j2").read_text(encoding="utf-8"))


def _printable(value: Any) -> Any:
    """Every value of the template, before it is escaped; a macro's result is markup already."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


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


def stroke(x1: float, y1: float, x2: float, y2: float, kind: str) -> Shape:
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
