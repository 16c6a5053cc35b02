"""The topic-partitions of a group that belong to a flow, on either side."""

from __future__ import annotations

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.scheduled.scope import FlowScope
from tests.support.chains import FLOW
from tests.support.group_cluster import settings

AT = OffsetAndMetadata(7)


def identity() -> FlowSettings:
    """The same flow, under names that stay."""
    return msgspec.structs.replace(settings(), replication_policy="identity")


def test_places_of_the_source_are_those_that_are_replicated() -> None:
    committed = {("orders", 3): AT, ("unrelated", 0): AT, ("us-east.orders", 0): AT, ("heartbeats", 0): AT}
    circle = {("eu-west.orders", 0): AT}

    assert FlowScope.of(settings(topics=("orders", "eu-west.orders"))).on_source(committed | circle) == {
        Lane(FLOW, "orders", 3): AT,
        Lane(FLOW, "heartbeats", 0): AT,
    }


def test_places_of_the_target_are_those_that_this_flow_has_made() -> None:
    """A topic of the same name that was born there, or that came from elsewhere, is another one."""
    committed = {
        ("us-east.orders", 3): AT,
        ("orders", 3): AT,
        ("ap-south.orders", 3): AT,
        ("us-east.unrelated", 0): AT,
        ("us-east.heartbeats", 0): AT,
        ("us-east.eu-west.orders", 0): AT,
    }

    assert FlowScope.of(settings()).on_target(committed) == {
        Lane(FLOW, "orders", 3): AT,
        Lane(FLOW, "heartbeats", 0): AT,
    }


def test_under_the_identity_policy_the_names_are_the_same_on_both_sides() -> None:
    scope = FlowScope.of(identity())
    committed = {("orders", 3): AT, ("unrelated", 0): AT}

    assert scope.on_source(committed) == scope.on_target(committed) == {Lane(FLOW, "orders", 3): AT}
    assert scope.remote_partition(Lane(FLOW, "orders", 3)) == ("orders", 3)


def test_groups_of_mappings_are_never_in_scope() -> None:
    scope = FlowScope.of(settings())

    assert scope.group("shop")
    assert not scope.group("mirrorless.us-east.eu-west.orders")
    assert not scope.group("console-consumer-17")
