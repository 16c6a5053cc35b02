"""The page of costs, from the model."""

from __future__ import annotations

from infra.cost import cost_page, cost_section
from mirrorless.reports.page import render
from mirrorless.reports.report import Report
from tests.support.assembly import REPOSITORY


def test_the_section_can_be_drawn() -> None:
    page = render(Report(title="Cost", verdict="", tone="", sections=(cost_section(),)))

    assert "MSK Replicator" in page
    assert "<svg" in page


def test_the_page_is_up_to_date() -> None:
    assert (REPOSITORY / "docs" / "reference" / "cost.md").read_text(encoding="utf-8") == cost_page(), "run `make docs`"
