"""Names of remote topics and back, by MM2's rules, one row per rule."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.chain.lane import FlowName
from mirrorless.flow.policy import DefaultPolicy, IdentityPolicy, ReplicationPolicy, is_legal_topic, replication_policy
from mirrorless.flow.triggers import Trigger, TriggerRules

EAST_TO_WEST = FlowName("us-east", "eu-west")
ALIASES = frozenset({"us-east", "eu-west", "ap-south"})


@pytest.mark.parametrize(
    ("topic", "source", "upstream", "original"),
    [
        ("orders", None, None, "orders"),
        ("a.orders", "a", "orders", "orders"),
        ("a.b.orders", "a", "b.orders", "orders"),
        ("a.", None, None, "a."),
        (".b", "", "b", "b"),
        ("a..b", "a", ".b", "b"),
        ("..", None, None, ".."),
        ("a..", None, None, "a.."),
    ],
)
def test_a_remote_topic_is_read_back_as_java_splits_it(
    topic: str, source: str | None, upstream: str | None, original: str
) -> None:
    """Java's split drops empty parts at the end; MM2's own clients would disagree with any other reading."""
    policy = DefaultPolicy()

    assert policy.topic_source(topic) == source
    assert policy.upstream_topic(topic) == upstream
    assert policy.original_topic(topic) == original


def test_a_dotted_source_topic_is_not_taken_for_a_remote_topic() -> None:
    """MM2 takes `orders` for a cluster here, and neither replicates nor translates the topic as it should."""
    policy = DefaultPolicy(aliases=ALIASES)

    assert policy.topic_source("orders.v1") is None
    assert policy.original_topic("us-east.orders.v1") == "orders.v1"
    assert policy.topic_source("us-east.orders.v1") == "us-east"


def test_heartbeats_of_clusters_beyond_the_configuration_are_still_known() -> None:
    policy = DefaultPolicy(aliases=ALIASES)

    assert policy.is_heartbeats_topic("sa-east.heartbeats")
    assert policy.topic_source("sa-east.us-east.heartbeats") == "sa-east"


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("heartbeats", True),
        ("us-east.heartbeats", True),
        ("ap-south.us-east.heartbeats", True),
        ("us-east.my-heartbeats", False),
        ("orders", False),
    ],
)
def test_heartbeats_topics_are_known_over_any_number_of_hops(topic: str, *, expected: bool) -> None:
    assert DefaultPolicy().is_heartbeats_topic(topic) is expected


@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("__consumer_offsets", True),
        (".hidden", True),
        ("mm2-offset-syncs.eu-west.internal", True),
        ("mm2-offsets.us-east.internal", True),
        ("us-east.checkpoints.internal", True),
        ("orders.internal", False),  # internal up to MM2 3.9, no longer since 4.0
        ("orders-internal", False),
        ("mm2-notes", False),
        ("orders", False),
    ],
)
def test_internal_topics_follow_the_rule_since_mm2_4_0(topic: str, *, internal: bool) -> None:
    assert DefaultPolicy().is_internal_topic(topic) is internal


def test_internal_names_follow_the_separator_by_default() -> None:
    with_separator = DefaultPolicy(separator="_")
    with_dots = DefaultPolicy(separator="_", internal_topic_separator_enabled=False)

    assert with_separator.remote_topic("us-east", "orders") == "us-east_orders"
    assert with_separator.checkpoints_topic("us-east") == "us-east_checkpoints_internal"
    assert with_separator.offset_syncs_topic("eu-west") == "mm2-offset-syncs_eu-west_internal"
    assert with_dots.remote_topic("us-east", "orders") == "us-east_orders"
    assert with_dots.checkpoints_topic("us-east") == "us-east.checkpoints.internal"
    assert with_dots.offset_syncs_topic("eu-west") == "mm2-offset-syncs.eu-west.internal"
    assert with_separator.heartbeats_topic() == with_dots.heartbeats_topic() == "heartbeats"
    assert with_dots.is_internal_topic("us-east.checkpoints.internal")
    assert not with_dots.is_internal_topic("us-east_checkpoints_internal")


@pytest.mark.parametrize(
    ("topic", "since_4_4", "up_to_4_3"),
    [
        ("orders", False, False),
        ("ap-south.orders", False, False),
        ("eu-west.orders", True, True),
        ("ap-south.eu-west.orders", True, True),
        ("us-east.orders", True, False),
        ("ap-south.us-east.orders", True, False),
    ],
)
def test_a_topic_that_has_been_at_an_end_of_the_flow_is_a_cycle(
    topic: str, *, since_4_4: bool, up_to_4_3: bool
) -> None:
    policy = DefaultPolicy(aliases=ALIASES)

    assert policy.is_cycle(topic, EAST_TO_WEST) is since_4_4
    assert policy.is_cycle(topic, EAST_TO_WEST, strict=False) is up_to_4_3


def test_identity_keeps_every_name_but_those_of_heartbeats() -> None:
    policy: ReplicationPolicy = IdentityPolicy(source_alias="us-east")

    assert policy.remote_topic("us-east", "orders") == "orders"
    assert policy.topic_source("orders") == "us-east"
    assert policy.upstream_topic("orders") == "orders"
    assert policy.original_topic("orders") == "orders"
    assert policy.remote_topic("us-east", "heartbeats") == "us-east.heartbeats"
    assert policy.topic_source("heartbeats") is None
    assert policy.topic_source("us-east.heartbeats") == "us-east"
    assert policy.is_heartbeats_topic("us-east.heartbeats")


def test_identity_finds_no_cycle_in_data_topics_but_does_in_heartbeats() -> None:
    policy = IdentityPolicy(source_alias="us-east")

    assert not policy.is_cycle("orders", EAST_TO_WEST)
    assert not policy.is_cycle("eu-west.orders", EAST_TO_WEST)
    assert policy.is_cycle("eu-west.heartbeats", EAST_TO_WEST)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "é", "a/b", "x" * 250])
def test_names_that_kafka_refuses_are_no_topics(name: str) -> None:
    assert not is_legal_topic(name)


KEPT = {"us-east": "A", "eu-west": "dc.East_1"}
"""Aliases of MM2 that are none here."""


@pytest.mark.parametrize("name", ["prefixed", "identity"])
def test_names_keep_the_alias_that_mm2_gave_a_cluster(name: Literal["prefixed", "identity"]) -> None:
    kept = replication_policy(name, source_alias="us-east", aliases=ALIASES, prefixes=KEPT)

    assert kept.remote_topic("us-east", "heartbeats") == "A.heartbeats"
    assert kept.checkpoints_topic("us-east") == "A.checkpoints.internal"
    assert kept.offset_syncs_topic("eu-west") == "mm2-offset-syncs.dc.East_1.internal"
    assert [kept.topic_source(f"{start}.heartbeats") for start in ("A", "dc.East_1", "dc")] == [*KEPT, "dc"]
    assert kept.original_topic("dc.East_1.A.heartbeats") == "heartbeats"
    assert kept.is_cycle("dc.East_1.heartbeats", EAST_TO_WEST)
    assert not kept.is_cycle("ap-south.heartbeats", EAST_TO_WEST)


def test_an_alias_whose_topics_have_another_prefix_is_no_origin() -> None:
    policy = DefaultPolicy(aliases=ALIASES, prefixes=KEPT)

    assert policy.remote_topic("us-east", "orders") == "A.orders"
    assert (policy.topic_source("A.orders"), policy.upstream_topic("A.orders")) == ("us-east", "orders")
    assert (policy.topic_source("dc.East_1.orders"), policy.topic_source("dc.orders")) == ("eu-west", None)
    assert (policy.topic_source("us-east.orders"), policy.upstream_topic("us-east.orders")) == (None, None)


@pytest.mark.parametrize("prefixes", [{}, KEPT], ids=["aliases", "prefixes"])
@given(
    topic=st.from_regex(r"[a-zA-Z0-9._-]{0,59}[a-zA-Z0-9]", fullmatch=True),
    hops=st.lists(st.sampled_from(sorted(ALIASES)), max_size=4),
)
def test_every_hop_of_a_remote_topic_can_be_taken_back(topic: str, hops: list[str], prefixes: dict[str, str]) -> None:
    """Round trip, but for topics that end in a separator, which MM2 does not distinguish from nothing."""
    policy = DefaultPolicy(aliases=ALIASES, prefixes=prefixes)
    name = topic

    for alias in hops:
        name = policy.remote_topic(alias, name)
    for alias in reversed(hops):
        assert policy.topic_source(name) == alias
        name = policy.upstream_topic(name) or ""

    assert name == topic


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
