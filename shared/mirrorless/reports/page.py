"""The HTML page of a report, by the template `report.html.j2`: one file with its styles and plots, without scripts."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from mirrorless.reports.format import cell, moment, printable
from mirrorless.reports.plots import draw, note_of, numbers_of
from mirrorless.reports.report import Report, Table
from mirrorless.reports.svg import WIDTH

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
    words = [value for value in values if isinstance(value, str) and value]
    if not words and any(isinstance(value, int | float) for value in values):
        return "number"
    return "short" if all(len(each) <= SHORT for each in words) else ""


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, finalize=_printable, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"cell": cell, "moment": moment}
    return environment.from_string(files("mirrorless.reports").joinpath("report.html.j2").read_text(encoding="utf-8"))


def _printable(value: Any) -> Any:
    """Every value of the template, before it is escaped; a macro's result is markup already."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
