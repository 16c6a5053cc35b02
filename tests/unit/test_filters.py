"""Filters of names: included and not excluded."""

from __future__ import annotations

import pytest

from mirrorless.filters import (
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    NameFilter,
    check_pattern,
    is_literal,
    should_replicate,
    split_list,
)
from mirrorless.lane import FlowName
from mirrorless.policy import DefaultPolicy

FLOW = FlowName("us-east", "eu-west")
POLICY = DefaultPolicy(aliases=frozenset({"us-east", "eu-west"}))


def test_a_pattern_matches_the_whole_name_or_not_at_all() -> None:
    topics = NameFilter(include=["orders-.*"])

    assert topics.accepts("orders-eu")
    assert not topics.accepts("old-orders-eu")
    assert not topics.accepts("orders")


def test_a_literal_dot_is_a_dot() -> None:
    """MM2 would take `orders-v1` here, which the list does not name."""
    topics = NameFilter(include=["orders.v1"])

    assert topics.accepts("orders.v1")
    assert not topics.accepts("orders-v1")


def test_the_exclusion_wins() -> None:
    topics = NameFilter(include=[".*", "orders"], exclude=["orders", "tmp-.*"])

    assert topics.accepts("payments")
    assert not topics.accepts("orders")
    assert not topics.accepts("tmp-1")
    assert topics.literals == ()


def test_a_name_is_compared_whole_and_by_its_case() -> None:
    topics = NameFilter(include=["orders", "Orders.v2"])

    assert [
        name for name in ("orders", "Orders.v2", "Orders", "orders\n", "order", "orders.v2") if topics.accepts(name)
    ] == [
        "orders",
        "Orders.v2",
    ]
    assert not NameFilter(include=["tmp.*"], exclude=["tmp.1"]).accepts("tmp.1")
    assert NameFilter(include=["tmp.*"], exclude=["tmp.1"]).accepts("tmp-1")


def test_an_empty_list_takes_nothing() -> None:
    assert not NameFilter(include=[]).accepts("orders")
    assert not NameFilter(include=[]).accepts("")


def test_literals_and_patterns_are_distinguished() -> None:
    topics = NameFilter(include=["orders", "audit-log", "pay.*", "a.b_c"])

    assert topics.literals == ("orders", "audit-log", "a.b_c")
    assert topics.patterns == ("pay.*",)
    assert not is_literal("a b")


def test_inline_flags_and_groups_hold_for_their_own_entry() -> None:
    topics = NameFilter(include=["(?i)orders.*", r"(a)\1", r"(b)\1"])

    assert topics.accepts("ORDERS-1")
    assert topics.accepts("aa")
    assert topics.accepts("bb")
    assert not topics.accepts("BB")


def test_a_broken_pattern_is_named_with_its_place() -> None:
    assert (
        check_pattern("orders-[")
        == "'orders-[' is not a valid regular expression: unterminated character set at character 8"
    )
    with pytest.raises(ValueError, match="'\\*' is not a valid regular expression"):
        NameFilter(include=["orders", "*"])


def test_an_operator_that_only_java_has_is_refused() -> None:
    """Python would take the ampersands for characters, and replicate other topics than MM2 did."""
    assert check_pattern("orders-[a-z&&[^x]]") == "'orders-[a-z&&[^x]]' is in Java's form"
    assert "ambiguous" in (check_pattern("orders-[a-z--b]") or "")


def test_signs_of_kinds_of_characters_are_of_ascii_as_in_java() -> None:
    topics = NameFilter(include=[r"\w+", r"(?i)k-\d"])

    assert [name for name in ("Ä", "a", "k-٣", "\u212a-3", "K-3") if topics.accepts(name)] == ["a", "K-3"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("orders", ("orders",)),
        (" orders , payments-.* ,", ("orders", "payments-.*")),
        ("a{1,3},b", ("a{1,3}", "b")),
        ("", ()),
    ],
)
def test_a_comma_list_is_read_as_mm2_reads_it(text: str, entries: tuple[str, ...]) -> None:
    assert split_list(text) == entries


@pytest.mark.parametrize("topic", ["mm2-offsets.us-east.internal", "orders.replica", "__consumer_offsets"])
def test_the_default_exclusion_is_mm2s(topic: str) -> None:
    assert not NameFilter(include=[".*"], exclude=TOPICS_EXCLUDE).accepts(topic)


def test_tools_groups_are_not_followed() -> None:
    groups = NameFilter(include=[".*"], exclude=GROUPS_EXCLUDE)

    assert groups.accepts("billing")
    assert not groups.accepts("console-consumer-4711")


@pytest.mark.parametrize(
    ("topic", "replicated"),
    [
        ("orders", True),
        ("orders.v1", True),
        ("heartbeats", True),
        ("ap-south.heartbeats", True),
        ("eu-west.orders", False),
        ("eu-west.heartbeats", False),
        ("us-east.checkpoints.internal", False),
        ("__consumer_offsets", False),
        ("secrets", False),
    ],
)
def test_a_topic_is_replicated_when_wanted_and_neither_internal_nor_a_cycle(topic: str, *, replicated: bool) -> None:
    topics = NameFilter(include=["orders.*", "eu-west.*", ".*internal", "__.*"])

    assert should_replicate(topic, flow=FLOW, topics=topics, policy=POLICY) is replicated


def test_heartbeats_are_left_alone_when_switched_off() -> None:
    topics = NameFilter(include=["orders"])

    assert not should_replicate("heartbeats", flow=FLOW, topics=topics, policy=POLICY, heartbeats=False)
