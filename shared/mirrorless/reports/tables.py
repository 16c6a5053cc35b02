"""How do tables look? Words left, numbers right and grouped, a bad row with a mark as well as a colour."""

from __future__ import annotations

from mirrorless.reports.report import Cell, Table, Tone
from mirrorless.reports.writing import cell, text

SHORT = 30
"""Characters of a cell that stay on one line."""


def titled_table(table: Table) -> str:
    """A table with its title and its note. A wide one scrolls by itself, and the page stays where it is."""
    note = f'<p class="note">{text(table.note)}</p>' if table.note else ""
    if not table.rows:
        return f'<h3>{text(table.title)}</h3><p class="note">None.</p>{note}'
    return f"<h3>{text(table.title)}</h3>{plain_table(table)}{note}"


def plain_table(table: Table) -> str:
    """A table alone; its title names it to who does not see it."""
    sides = [_side(table, index) for index in range(len(table.columns))]
    head = "".join(f'<th scope="col"{side}>{text(name)}</th>' for name, side in zip(table.columns, sides, strict=True))
    tones = dict(enumerate(table.tones))
    body = "".join(_row(row, sides, tones.get(index, "")) for index, row in enumerate(table.rows))
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: tuple[Cell, ...], sides: list[str], tone: Tone) -> str:
    cells = "".join(f"<td{side}>{text(cell(value))}</td>" for value, side in zip(row, sides, strict=True))
    return f'<tr class="{tone}">{cells}</tr>' if tone else f"<tr>{cells}</tr>"


def _side(table: Table, index: int) -> str:
    """The class of a column: of numbers, of words too short to be broken, or of text."""
    values = [row[index] for row in table.rows]
    words = [value for value in values if isinstance(value, str) and value]
    if not words and any(isinstance(value, int | float) for value in values):
        return ' class="number"'
    return ' class="short"' if all(len(each) <= SHORT for each in words) else ""
