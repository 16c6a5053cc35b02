"""Lane plots: a strip for each lane, as long as its offsets are many. A single missing record is still visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirrorless.reports import svg
from mirrorless.reports.format import number, short
from mirrorless.reports.report import LanePlot, Segment
from mirrorless.reports.svg import Scale, scale

ROW, STRIP = 24, 12
LABELS = (60, 230)
ENDS = 100
"""Pixels behind the longest strip, for the offset at its end."""

THINNEST, OVER = 2.0, 3.0
"""A segment's least width in pixels, and how far a bad one stands out of its strip."""

MOST = 100
"""Lanes in one plot, worst first; the tables have all."""

COLOURS = 6
_BACK = ("quiet", "", "good", "bad")
"""From back to front, by tone: bad segments are drawn over their surroundings."""

Lanes = Sequence[tuple[str, tuple[Segment, ...]]]


def draw_lanes(plot: LanePlot) -> svg.Drawing:
    """The shapes of a plot, with its legend."""
    lanes = shown(plot)
    left = min(max(max((len(label) + 2 for label, _ in lanes), default=0) * svg.LETTER + 12, LABELS[0]), LABELS[1])
    longest = max((_end(segments) - _begin(segments) for _, segments in lanes), default=1)
    axis = scale([0, max(1, longest)], left, svg.WIDTH - ENDS, zero=True)
    legend, top = _legend(plot, left)
    bottom = top + len(lanes) * ROW
    parts = [svg.line(axis.at(tick), top - 2, axis.at(tick), bottom, "grid") for tick in axis.ticks()]
    parts += [svg.words(axis.at(tick), bottom + 16, short(tick), "tick", anchor="middle") for tick in axis.ticks()]
    parts += legend
    for index, (label, segments) in enumerate(lanes):
        parts += _strip(plot, label, segments, top + index * ROW + 4, axis)
    parts.append(svg.words(axis.end, bottom + 34, "offsets from where the lane begins", "unit", anchor="end"))
    return svg.Drawing(height=bottom + 42, shapes=tuple(parts), description=_described(plot))


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


def _strip(plot: LanePlot, label: str, segments: Sequence[Segment], top: float, axis: Scale) -> Iterable[svg.Shape]:
    begin, end = _begin(segments), _end(segments)
    middle = top + STRIP / 2 + 4
    name = f"✗ {label}" if label in plot.first else label
    yield svg.words(axis.begin - 10, middle, name, "name", anchor="end", fit=axis.begin - 10)
    yield svg.rect(axis.at(0), top, axis.at(end - begin) - axis.at(0), STRIP, "ground")
    colours = _colours(plot)
    for kind in sorted(colours, key=lambda each: _BACK.index(plot.tones.get(each, ""))):
        mine = [each for each in segments if each.kind == kind and each.next > each.first]
        for x, width, first, after in _drawn(mine, begin, axis):
            tip = f"{label} {kind}: {number(first)} to {number(after - 1)}"
            over = OVER if plot.tones.get(kind) == "bad" else 0
            yield svg.rect(x, top - over, width, STRIP + 2 * over, colours[kind], tip=tip)
    yield svg.words(axis.at(end - begin) + 8, middle, number(end), "tick")


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


def _legend(plot: LanePlot, left: float) -> tuple[list[svg.Shape], float]:
    """Every kind with its colour and its records, where they are counted; and the top of the plot below."""
    parts: list[svg.Shape] = []
    x, y = left, 4.0
    colours = _colours(plot)
    for kind, count in kinds(plot).items():
        entry = _entry(kind, count)
        width = len(entry) * svg.LETTER * svg.NARROW + 40
        if x > left and x + width > svg.WIDTH:
            x, y = left, y + 20
        parts.append(svg.rect(x, y, 12, STRIP, colours[kind]))
        parts.append(svg.words(x + 18, y + 10, entry, "name"))
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
