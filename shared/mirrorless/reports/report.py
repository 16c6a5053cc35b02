"""The parts of a report: figures, tables and plots, as plain values for programs and for the page.

A report is built once, as these values. `report.json` holds them with the job's totals; `mirrorless.reports.page`
renders them. Code that builds a report writes no HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")

Cell = str | int | float | None
Tone = Literal["", "good", "bad", "quiet"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One of the numbers at the top of the page."""

    name: str
    value: Cell
    unit: str = ""
    tone: Tone = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under headings. Numbers are set right and grouped by thousands; a `bad` row stands out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    tones: tuple[Tone, ...] = ()
    """Of the rows, from the first on; rows without a tone are plain."""
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse a table with rows of another length.

        Raises:
            ValueError: a row has more or fewer cells than there are columns.
        """
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: {len(row)} cells in {len(self.columns)} columns: {row}")

    @classmethod
    def of(
        cls,
        title: str,
        some: Iterable[T],
        cells: Mapping[str, Callable[[T], Cell]],
        *,
        tone: Callable[[T], Tone] | None = None,
        note: str = "",
    ) -> Table:
        """A table with a row for each of some. Args: cells: of a row, by the columns' headings."""
        every = list(some)
        return cls(
            title=title,
            columns=tuple(cells),
            rows=tuple(tuple(cell(each) for cell in cells.values()) for each in every),
            tones=() if tone is None else tuple(map(tone, every)),
            note=note,
        )


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line through points (x, y), x growing."""

    label: str
    points: tuple[tuple[float, float], ...]


class LinePlot(msgspec.Struct, frozen=True, kw_only=True, tag="lines"):
    """Lines over one x axis."""

    title: str
    x_unit: str
    y_unit: str
    lines: tuple[Line, ...]
    log_y: bool = False
    log_x: bool = False
    x_range: tuple[float, float] | None = None
    """What the axis shows at least, where the points alone would show less than the plot is about."""
    note: str = ""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a lane's offsets, half-open, of one kind."""

    first: int
    next: int
    kind: str


class LanePlot(msgspec.Struct, frozen=True, kw_only=True, tag="lanes"):
    """One strip per lane over its offsets, coloured by kind: what was copied, proved, missing, orphaned."""

    title: str
    lanes: tuple[tuple[str, tuple[Segment, ...]], ...]
    tones: dict[str, Tone] = {}
    """Of the kinds."""
    counts: dict[str, int] = {}
    """Records of each kind, for the legend: of all lanes, drawn or not, and as the figures have them."""
    first: tuple[str, ...] = ()
    """Lanes that need a look: they come first, and are marked."""
    note: str = ""


Plot = LinePlot | LanePlot


class ReportSection(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page under one heading."""

    heading: str
    text: tuple[str, ...] = ()
    """Paragraphs."""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report."""

    title: str
    verdict: str
    """The result in one sentence."""
    tone: Tone
    figures: tuple[Figure, ...] = ()
    sections: tuple[ReportSection, ...] = ()
    made_at: int = 0
    """ms since the epoch."""
