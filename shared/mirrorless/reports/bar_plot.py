"""Bar plots: bars from zero, one below the other, each between its name and its value."""

from __future__ import annotations

from mirrorless.reports import svg
from mirrorless.reports.format import number, short
from mirrorless.reports.report import Bar, BarPlot
from mirrorless.reports.scale import Scale, scale

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
