"""Drawings of plots, with the note and the numbers beside them."""

from __future__ import annotations

from mirrorless.reports.bar_plot import draw_bars
from mirrorless.reports.format import number
from mirrorless.reports.lane_plot import draw_lanes, shown
from mirrorless.reports.line_plot import draw_lines, not_shown
from mirrorless.reports.report import BarPlot, Cell, LanePlot, LinePlot, Plot, Table
from mirrorless.reports.svg import Drawing

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
            more = f"Shown are {number(len(shown(plot)))} of {count} lanes, those with most to look at."
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
