"""The topics that a flow takes, those that it refuses, and the remote topics that they need."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorless.flow.settings import FlowSettings
from mirrorless.topics.discovery import awaits_heartbeats, discover, plan_remote_topics
from tests.support.flows import make_flow

FLOW = make_flow("source->target")


def settings(**changes: Any) -> FlowSettings:
    """A flow that takes everything of a source without a list of cluster aliases, as in MM2."""
    return make_flow("source->target", **{"topics": (".*",)} | changes)


def taken(*topics: str, **changes: Any) -> list[str]:
    return list(discover(dict.fromkeys(topics, 1), settings(**changes)).taken)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, ["heartbeats", "us-west.heartbeats"], id="by default"),
        pytest.param({"topics": ()}, ["heartbeats", "us-west.heartbeats"], id="despite the filter"),
        pytest.param(
            {"topics": (), "replication_policy_separator": "_"},
            ["heartbeats"],
            id="a dotted name, with another separator",
        ),
        pytest.param({"topics": (), "heartbeats_replication_enabled": False}, [], id="switched off"),
        pytest.param(
            {"topics": ("h.*",), "heartbeats_replication_enabled": False}, ["heartbeats"], id="the filter takes them"
        ),
    ],
)
def test_heartbeats_are_replicated_unless_the_flow_says_otherwise(changes: Any, expected: list[str]) -> None:
    assert taken("heartbeats", "us-west.heartbeats", **changes) == expected


def test_the_first_heartbeat_is_awaited_where_the_flow_writes_and_takes_it() -> None:
    assert awaits_heartbeats({"orders": 1}, settings())
    assert awaits_heartbeats({}, settings(topics=(), emit_heartbeats_interval_seconds=86_400))
    assert awaits_heartbeats({}, settings(heartbeats_replication_enabled=False)), "the filter takes it"
    assert not awaits_heartbeats({"heartbeats": 1}, settings())
    assert not awaits_heartbeats({}, settings(emit_heartbeats_enabled=False))
    assert not awaits_heartbeats({}, settings(emit_heartbeats_source_enabled=False))
    assert not awaits_heartbeats({}, settings(topics=(), heartbeats_replication_enabled=False))


CYCLES = ("source.topic1", "target.topic1", "target.source.topic1", "source.target.topic1")
LONGER_CYCLES = ("target.source.target.topic1", "source.target.source.topic1")
NO_CYCLES = ("topic1", "othersource.topic1", "othertarget.topic1", "other.another.topic1")


def test_what_came_from_the_source_or_the_target_is_not_sent_in_circles() -> None:
    assert taken(*CYCLES, *LONGER_CYCLES, *NO_CYCLES) == sorted(NO_CYCLES)


def test_under_identity_names_show_no_cycles_but_those_of_heartbeats() -> None:
    names = (*CYCLES, *LONGER_CYCLES, *NO_CYCLES)
    heartbeats = ("target.heartbeats", "target.source.heartbeats", "othersource.heartbeats", "heartbeats")

    found = taken(*names, *heartbeats, replication_policy="identity")

    assert found == sorted([*names, "heartbeats", "othersource.heartbeats"])


def test_a_literal_name_that_cannot_be_replicated_is_reported() -> None:
    found = discover({"target.orders": 1, "orders": 1}, settings(topics=("target.orders", "orders")))

    assert found.taken == ("orders",)
    assert ["target.orders" in trouble and "in circles" in trouble for trouble in found.troubles()] == [True]


def test_what_only_a_pattern_matches_is_refused_in_silence_and_counted() -> None:
    """`.*` in both directions of a pair matches the other flow's remote topics for ever: no news for anybody."""
    found = discover({"target.orders": 1, ".internal": 1, "orders": 1}, settings())

    assert found.troubles() == []
    assert found.refused == {"cycle": ("target.orders",), "internal": (".internal",)}


@pytest.mark.parametrize(
    ("topic", "reason"),
    [("a" * 190, "200 characters"), ("a" * 245, "no legal topic name"), ("x", "one character")],
    ids=["group", "remote name", "one letter"],
)
def test_a_topic_that_cannot_be_mapped_is_reported(topic: str, reason: str) -> None:
    found = discover({topic: 1, "orders": 1}, settings())

    assert found.taken == ("orders",)
    assert reason in found.troubles()[0]


def test_one_sentence_reports_many_topics() -> None:
    found = discover({chr(97 + n): 1 for n in range(9)}, settings())

    (trouble,) = found.troubles()

    assert trouble.startswith("not replicated: a, b, c, d, e and 4 more: Lambda maps no topic whose name is one char")


def test_a_topic_that_the_flow_names_and_the_source_does_not_have_is_reported() -> None:
    assert discover({}, settings(topics=("orders", "pay.*"))).troubles() == [
        "not on the source: orders, which the flow names"
    ]


def test_topics_are_mapped_by_us_where_the_template_does_not_map_them_and_no_schedule_reads_them() -> None:
    found = discover(
        dict.fromkeys(("orders", "back", "slow", "payments", "pay-slow", "heartbeats"), 1),
        settings(
            topics=("orders", "back", "slow", "pay.*"),
            trigger_overrides={"back": "mapping", ".*slow": "schedule", "gone": "schedule"},
        ),
    )

    assert found.template == {"orders"}
    assert found.scheduled == {"slow", "pay-slow"}
    assert found.mapped == {"back", "payments", "heartbeats"}
    (trouble,) = found.troubles()
    assert trouble.startswith("without effect in trigger.overrides: gone: the source has no such topic for the flow")


@pytest.mark.parametrize("topic", ["a" * 190, "x"])
def test_a_topic_that_cannot_be_mapped_can_be_scheduled(topic: str) -> None:
    found = discover({topic: 1}, settings(trigger="schedule"))

    assert found.scheduled == {topic}
    assert found.troubles() == []


def test_a_remote_topic_is_created_with_the_sources_count_grown_to_it_and_never_shrunk() -> None:
    on_target = {"source.grown": 2, "source.same": 3, "source.wide": 5, "new": 7}

    plan = plan_remote_topics({"new": 3, "grown": 3, "same": 3, "wide": 3}, on_target, settings())

    assert (plan.create, plan.grow) == ({"new": 3}, {"grown": 3})
