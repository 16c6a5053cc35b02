"""Drawings of plots, with the note and the numbers beside them; bar plots are drawn here."""

from __future__ import annotations

from mirrorless.reports import svg
from mirrorless.reports.format import number, short
from mirrorless.reports.lane_plot import draw_lanes, shown
from mirrorless.reports.line_plot import draw_lines, not_shown
from mirrorless.reports.report import Bar, BarPlot, Cell, LanePlot, LinePlot, Plot, Table
from mirrorless.reports.svg import Drawing, Scale, scale

ROW, BAR = 26, 14
LABELS = (60, 250)
"""The least and the greatest width of the names, in pixels."""

VALUES = 96
"""Pixels behind the longest bar."""


def draw_bars(plot: BarPlot) -> svg.Drawing:
    """The shapes of a plot."""
    longest = max((len(each.label) for each in plot.bars), default=0) * svg.LETTER + 12
    left = min(max(longest, LABELS[0]), LABELS[1])
    reach = [reached for each in plot.bars for reached in (each.value, each.high, each.low) if reached is not None]
    axis = scale(reach, left, svg.WIDTH - VALUES, zero=True)
    bottom = len(plot.bars) * ROW + 6
    parts = []
    for tick in axis.ticks():
        parts.append(svg.line(axis.at(tick), 0, axis.at(tick), bottom, "zero" if tick == 0 else "grid"))
        parts.append(svg.words(axis.at(tick), bottom + 16, short(tick), "tick", anchor="middle"))
    for index, bar in enumerate(plot.bars):
        parts += _bar(bar, index * ROW + 6, axis, left)
    parts.append(svg.words(svg.WIDTH - VALUES, bottom + 34, plot.unit, "unit", anchor="end"))
    return svg.Drawing(height=bottom + 42, shapes=tuple(parts), description=_described(plot))


def _bar(bar: Bar, top: float, axis: Scale, left: float) -> list[svg.Shape]:
    zero, here, middle = axis.at(0), axis.at(bar.value), top + BAR / 2
    tone = f"fill-{bar.tone}" if bar.tone else "fill"
    parts = [
        svg.words(left - 10, middle + 4, bar.label, "name", anchor="end", fit=left - 10),
        svg.rect(min(zero, here), top, abs(here - zero), BAR, tone, tip=f"{bar.label}: {number(bar.value)}"),
    ]
    end = max(here, zero)
    if bar.low is not None and bar.high is not None:
        low, high = axis.at(bar.low), axis.at(bar.high)
        parts.append(svg.line(low, middle, high, middle, "spread"))
        parts += [svg.line(each, middle - 4, each, middle + 4, "spread") for each in (low, high)]
        end = max(end, high)
    return [*parts, svg.words(end + 8, middle + 4, number(bar.value), "value")]


def _described(plot: BarPlot) -> str:
    bars = (f"{bar.label} {number(bar.value)}{_spread(bar)}" for bar in plot.bars)
    return f"{plot.unit}: {'; '.join(bars)}."


def _spread(bar: Bar) -> str:
    return "" if bar.low is None or bar.high is None else f", from {number(bar.low)} to {number(bar.high)}"


MOST_ROWS = 200
"""Of the numbers of a plot; `report.json` has more."""


def draw(plot: Plot) -> Drawing:
    """The shapes of a plot."""
    match plot:
        case BarPlot():
            return draw_bars(plot)
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
        case BarPlot() if any(bar.low is not None or bar.high is not None for bar in plot.bars):
            columns = ("", plot.unit, "lowest", "highest")
            rows = [(bar.label, bar.value, bar.low, bar.high) for bar in plot.bars]
        case BarPlot():
            columns, rows = ("", plot.unit), [(bar.label, bar.value) for bar in plot.bars]
        case LinePlot():
            columns = ("", plot.x_unit, plot.y_unit)
            rows = [(line.label, x, y) for line in plot.lines for x, y in line.points]
        case LanePlot():
            columns = ("lane", "first", "next", "kind")
            rows = [(lane, each.first, each.next, each.kind) for lane, segments in plot.lanes for each in segments]
    return Table(title=plot.title, columns=columns, rows=tuple(rows))
