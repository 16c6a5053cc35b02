"""Triggers of topics: the first entry that matches, and who maps what is not scheduled."""

from __future__ import annotations

import pytest

from mirrorless.triggers import Trigger, TriggerRules

RULES = TriggerRules(
    "mapping",
    (
        ("audit-eu", "mapping"),
        ("audit-.*", "schedule"),
        ("audit-us", "mapping"),
        ("logs", "schedule"),
        ("l.*", "mapping"),
    ),
)


@pytest.mark.parametrize(
    ("topic", "trigger"),
    [
        ("orders", "mapping"),
        ("audit-eu", "mapping"),  # named above the pattern
        ("audit-us", "schedule"),  # named below it
        ("audit-fr", "schedule"),
        ("logs", "schedule"),
        ("logs-2", "mapping"),
        ("x-audit-fr", "mapping"),  # a pattern matches the whole name
    ],
)
def test_the_first_entry_that_matches_decides(topic: str, trigger: Trigger) -> None:
    assert RULES.of(topic) == trigger


def test_the_template_maps_only_what_no_entry_is_about() -> None:
    """An entry may be what is left of a time in which the topic was scheduled."""
    named = ("orders", "audit-eu", "audit-us", "logs")

    assert list(filter(RULES.maps_in_template, named)) == ["orders"]
    assert not any(map(TriggerRules("schedule", (("orders", "mapping"),)).maps_in_template, named))


def test_an_entry_without_a_topic_and_one_below_its_like_are_unused() -> None:
    assert RULES.unused(["audit-us", "logs", "orders"]) == ("audit-eu", "audit-us", "l.*")
    assert RULES.unused([]) == tuple(entry for entry, _ in RULES.overrides)


def test_a_flow_schedules_nothing_until_a_trigger_is_written() -> None:
    assert not TriggerRules().schedules
    assert TriggerRules("schedule").schedules
    assert TriggerRules("mapping", (("orders", "mapping"),)).schedules, "it may be on its way back"
