"""How does a report look? One HTML page that needs nothing else: styles and plots are in it, scripts there are none."""

from __future__ import annotations

from mirrorless.reports.plots import draw
from mirrorless.reports.report import Figure, Report, ReportSection, Tone
from mirrorless.reports.styles import STYLES
from mirrorless.reports.tables import titled_table
from mirrorless.reports.writing import cell, moment, text

_MARKS: dict[Tone, str] = {"good": "✓", "bad": "✗", "quiet": "·", "": ""}
"""So that a verdict does not depend on its colour."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load for this page, whatever got into it: nothing."""


def render(report: Report) -> str:
    """The page."""
    sections = "".join(_section(section, f"s{index}") for index, section in enumerate(report.sections))
    made = f'<p class="made">{moment(report.made_at)}</p>' if report.made_at else ""
    mark = f'<span aria-hidden="true">{_MARKS[report.tone]}</span> ' if _MARKS[report.tone] else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(report.title)}</title>\n<style>{STYLES}</style>\n</head>\n<body>\n"
        f"<header>{made}<h1>{text(report.title)}</h1>"
        f'<p class="verdict {report.tone}">{mark}{text(report.verdict)}</p></header>\n'
        f"<main>{_figures(report.figures)}{sections}</main>\n</body>\n</html>\n"
    )


def _figures(figures: tuple[Figure, ...]) -> str:
    if not figures:
        return ""
    return f'<dl class="figures">{"".join(map(_figure, figures))}</dl>\n'


def _figure(figure: Figure) -> str:
    unit = f' <span class="of">{text(figure.unit)}</span>' if figure.unit else ""
    value = f"<dd>{text(cell(figure.value))}{unit}</dd>"
    return f'<div class="{figure.tone}"><dt>{text(figure.name)}</dt>{value}</div>'


def _section(section: ReportSection, name: str) -> str:
    paragraphs = "".join(f"<p>{text(each)}</p>" for each in section.text)
    plots = "".join(draw(plot, f"{name}p{index}") for index, plot in enumerate(section.plots))
    tables = "".join(map(titled_table, section.tables))
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{text(section.heading)}</h2>'
        f"{paragraphs}{plots}{tables}</section>\n"
    )
