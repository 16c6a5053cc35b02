"""List prices have a date, a region and sources."""

from __future__ import annotations

from datetime import date

from mirrorless.cost.prices import PRICES


def test_prices_say_when_and_where_they_are_from() -> None:
    assert date.fromisoformat(PRICES.as_of) >= date(2026, 1, 1)
    assert PRICES.jobs.as_of
    assert PRICES.region == "us-east-1"
    assert all(each.startswith("https://aws.amazon.com/") for each in PRICES.sources.values())
