"""Which picture does a plot get, and what stands beside it? A figure with its title, its note and its numbers."""

from __future__ import annotations

from mirrorless.reports.bar_plot import draw_bars
from mirrorless.reports.lane_plot import draw_lanes, shown
from mirrorless.reports.line_plot import draw_lines, not_shown
from mirrorless.reports.report import BarPlot, Cell, LanePlot, LinePlot, Plot, Table
from mirrorless.reports.tables import plain_table
from mirrorless.reports.writing import number, text

MOST_ROWS = 200
"""Of a plot's numbers: beyond that nobody reads them, and `report.json` has them."""


def draw(plot: Plot, name: str) -> str:
    """A plot as the page shows it. Args: name: an id that is unique on the page."""
    match plot:
        case BarPlot():
            drawn, more = draw_bars(plot, name), ""
        case LinePlot():
            drawn, more = draw_lines(plot, name), not_shown(plot)
        case LanePlot():
            count = len(plot.lanes)
            some = f"Shown are {number(len(shown(plot)))} of {number(count)} lanes, those with most to look at."
            drawn, more = draw_lanes(plot, name), some if len(shown(plot)) < count else ""
    note = " ".join(filter(None, (plot.note, more)))
    return (
        f'<figure class="plot"><figcaption>{text(plot.title)}</figcaption>{drawn}'
        + (f'<p class="note">{text(note)}</p>' if note else "")
        + _numbers(plot)
        + "</figure>"
    )


def _numbers(plot: Plot) -> str:
    """What the picture shows, for who does not see it or wants to copy it."""
    table = _table(plot)
    if not table.rows or len(table.rows) > MOST_ROWS:
        return ""
    return f"<details><summary>The numbers</summary>{plain_table(table)}</details>"


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
