"""How does a report look? One HTML page that needs nothing else: styles and plots are in it."""

from __future__ import annotations

from html import escape

from mirrorless.reports.report import Report


def render(report: Report) -> str:
    """The page."""
    return f"<!doctype html><title>{escape(report.title)}</title><p>{escape(report.verdict)}</p>"
