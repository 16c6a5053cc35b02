"""Flows that keep names in both directions copy every record to each cluster once, and carry groups without a gap."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrorless.chain.lane import FlowName
from mirrorless.chain.lane_state import RUNNING, Head, LaneState, Stop
from mirrorless.protocol.plan import plan_lane
from mirrorless.records.origin import ORIGIN_HEADER, OriginRule
from mirrorless.records.record import Headers, Record
from tests.support.chains import LANE
from tests.support.tries import tries
from tests.support.two_way_world import TOPIC, T, TwoWayWorld

THERE, BACK = FlowName("us-east", "eu-west"), FlowName("eu-west", "us-east")
RING = [FlowName("a", "b"), FlowName("b", "c"), FlowName("c", "a")]
POINTS = ("planned", "produced", "settled", "prepared", "committed", "confirmed")
RULE = OriginRule.of(TOPIC, source="us-east", target="eu-west", clusters=())


def record(offset: int, *headers: tuple[str, bytes | None]) -> Record:
    return Record(offset=offset, timestamp=T, headers=list(headers), key=b"k", value=b"%d" % offset)


def test_a_copy_names_its_origin_behind_the_headers_of_the_application_and_the_original_is_not_changed() -> None:
    original = record(1, ("trace", b"1"))

    (copy,), returned = RULE.split([original])

    assert copy.headers == [("trace", b"1"), (ORIGIN_HEADER, b"us-east/orders")]
    assert original.headers == [("trace", b"1")]
    assert not returned


@pytest.mark.parametrize(
    ("headers", "copied"),
    [
        ([(ORIGIN_HEADER, b"us-east/orders")], "as it is"),
        ([(ORIGIN_HEADER, b"eu-west/orders")], "not"),
        ([(ORIGIN_HEADER, b"us-east/orders"), (ORIGIN_HEADER, b"eu-west/orders")], "not"),
        ([(ORIGIN_HEADER, b"eu-west/payments")], "marked"),
        ([(ORIGIN_HEADER, b"elsewhere/orders")], "marked"),
        ([(ORIGIN_HEADER, b"")], "marked"),
        ([(ORIGIN_HEADER, None)], "marked"),
        ([("Mirrorless-Origin", b"eu-west/orders")], "marked"),
    ],
)
def test_a_header_counts_if_it_names_this_topic_and_a_cluster_of_the_circle(headers: Headers, copied: str) -> None:
    found, returned = RULE.split([record(1, *headers)])

    expected = {"as it is": [headers], "marked": [[*headers, (ORIGIN_HEADER, b"us-east/orders")]], "not": []}
    assert [each.headers for each in found] == expected[copied]
    assert returned == ([1] if copied == "not" else [])


def test_a_fenced_lane_passes_no_record_that_returns() -> None:
    returning = [record(at, (ORIGIN_HEADER, b"eu-west/orders")) for at in (8, 9, 10, 11)]
    fence = LaneState(stop=Stop(reason="held", upstream_offset=0, detail="", at=T))
    held = LaneState(stop=Stop(reason="held", upstream_offset=10, detail="", at=T))

    def plan(state: LaneState) -> tuple[int, bool]:
        found = plan_lane(LANE, Head(generation=0, position=8), state, returning, now=T, origin=RULE)
        return found.next, found.stop is not None

    assert plan(fence) == (8, True)
    assert plan(held) == (10, True)
    assert plan(RUNNING) == (12, False)


def test_a_record_that_an_application_passes_on_with_a_foreign_origin_does_not_go_in_circles() -> None:
    world = TwoWayWorld([THERE, BACK])
    world.produce("us-east", 2, headers=[(ORIGIN_HEADER, b"elsewhere/orders")])

    world.settle()

    assert [len(world.visible(alias)) for alias in world.clusters] == [2, 2]


ACTIONS = st.tuples(
    st.sampled_from(["produce", "deliver", "die"]),
    st.integers(0, 2),
    st.integers(1, 4),
    st.integers(0, 5),
    st.booleans(),
)


def happened(flows: list[FlowName], actions: list[tuple[str, int, int, int, bool]], *, die: bool) -> TwoWayWorld:
    """Clusters to which all this happened, in order. Args: die: whether environments do; they deliver otherwise."""
    world = TwoWayWorld(flows)
    for action, which, number, other, marker in actions:
        flow = flows[which % len(flows)]
        if action == "produce":
            world.produce(flow.source, number, marker=marker)
        else:
            world.deliver(flow, number, again=other, dies_at=POINTS[other] if die and action == "die" else "")
    return world


@settings(max_examples=tries(30, many=80), deadline=None)
@given(st.sampled_from([[THERE, BACK], RING]), st.lists(ACTIONS, max_size=25))
def test_every_record_is_on_each_cluster_once_whatever_dies_and_is_delivered_again(
    flows: list[FlowName], actions: list[tuple[str, int, int, int, bool]]
) -> None:
    world = happened(flows, actions, die=True)

    world.settle()

    world.assert_exactly_once()


@settings(max_examples=tries(30, many=100), deadline=None)
@given(st.lists(ACTIONS, max_size=25), st.integers(0, 60))
@example(
    [*[("produce", 0, 1, 0, False)] * 5, ("produce", 1, 1, 0, False), *[("deliver", i, 1, 0, False) for i in (0, 1)]], 1
)
def test_a_group_that_moves_skips_nothing_and_reads_again_what_is_counted(
    actions: list[tuple[str, int, int, int, bool]], at: int
) -> None:
    world = happened([THERE, BACK], actions, die=False)
    for flow in world.flows:
        offset = min(at, len(world.log(flow.source)))
        place = world.place(flow, offset)
        if place.found.offset is None:
            continue
        read = {each.value for each in world.visible(flow.source) if each.offset < offset}
        there = world.visible(flow.target)
        skipped = {each.value for each in there if each.offset < place.found.offset} - read
        again = {each.value for each in there if each.offset >= place.found.offset} & read
        assert not skipped
        assert len(again) == place.reread, again


@settings(max_examples=tries(30, many=100), deadline=None)
@given(st.lists(ACTIONS, min_size=1, max_size=25))
def test_where_nothing_is_on_its_way_a_group_that_has_read_all_reads_nothing_again(
    actions: list[tuple[str, int, int, int, bool]],
) -> None:
    world = happened([THERE, BACK], actions, die=False)
    world.produce("us-east")
    world.settle()
    for flow in world.flows:
        end = world.visible(flow.source)[-1].offset + 1
        place = world.place(flow, end)
        assert place.found.state == "exact"
        assert place.reread == 0
        assert place.found.offset is not None
        assert not [each for each in world.visible(flow.target) if each.offset >= place.found.offset]
