"""Groups between clusters that replicate to each other: exact where nothing is on its way, and nothing is skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from tests.support.tries import tries
from tests.support.two_way_groups import PLACE, TwoWayGroups
from tests.support.two_way_world import TwoWayWorld

THERE, BACK = FlowName("us-east", "eu-west"), FlowName("eu-west", "us-east")
FLOWS = [THERE, BACK]
REVERSES = [frozenset[FlowName](), frozenset({THERE}), frozenset(FLOWS)]

ACTIONS = st.tuples(
    st.sampled_from(["produce", "deliver", "consume", "round", "round"]),
    st.integers(0, 1),
    st.integers(1, 4),
    st.booleans(),
)


def live(groups: TwoWayGroups, actions: list[tuple[str, int, int, bool]]) -> None:
    for what, which, number, marker in actions:
        flow = FLOWS[which]
        if what == "produce":
            groups.world.produce(flow.source, number, marker=marker)
        elif what == "deliver":
            groups.world.deliver(flow, number)
        elif what == "consume":
            groups.consume(flow.source, "shop", number)
        else:
            groups.act(flow)


@settings(max_examples=tries(20, many=50), deadline=None)
@given(st.sampled_from(REVERSES), st.lists(ACTIONS, max_size=30))
def test_a_group_that_moves_at_any_time_skips_nothing_and_is_never_moved_back(
    reverse: frozenset[FlowName], actions: list[tuple[str, int, int, bool]]
) -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), reverse)
    for flow in FLOWS:
        groups.world.produce(flow.source, 2)
    groups.world.settle()

    live(groups, actions)  # `consume` holds each move against what was read
    groups.world.settle()
    groups.until_still()

    for alias in groups.world.clusters:
        groups.consume(alias, "shop")
        assert all(before is None or before < after for _, _, before, after in groups.groups[alias].commits)


@settings(max_examples=tries(12, many=30), deadline=None)
@given(st.lists(ACTIONS, max_size=20), st.lists(st.integers(0, 1), min_size=1, max_size=4))
def test_a_group_that_moves_when_everything_has_arrived_reads_each_record_once(
    actions: list[tuple[str, int, int, bool]], moves: list[int]
) -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), frozenset({THERE}))
    live(groups, [each for each in actions if each[0] in {"produce", "deliver"}])
    groups.world.produce("us-east", 2)
    groups.world.produce("eu-west", 1)
    for which in (0, *moves):
        groups.world.settle()
        groups.until_still()
        groups.consume(FLOWS[which].source, "shop")
        groups.until_still()
        assert groups.act(THERE).counts["groups-not-ready"] in (0, int(bool(which)))
        groups.world.produce(FLOWS[which].target, 1, marker=True)
    groups.world.settle()
    groups.until_still()

    groups.consume("us-east", "shop")

    assert set(Counter(groups.read["shop"]).values()) == {1}
    assert len(groups.read["shop"]) == len(groups.world.produced)


def test_while_the_region_of_the_other_map_is_lost_groups_keep_the_places_found_before() -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), frozenset())
    groups.world.produce("us-east", 3)
    groups.world.produce("eu-west", 2)
    groups.world.settle()
    groups.consume("us-east", "shop", 4)
    groups.until_still()
    found = groups.groups["eu-west"].offsets["shop"][PLACE]
    groups.topics["us-east"].silent = groups.groups["us-east"].silent = True
    groups._rounds[THERE] = groups._round(THERE)

    report = groups.act(THERE)

    assert groups.groups["eu-west"].offsets["shop"][PLACE] == found
    assert any("the map of eu-west->us-east does not answer" in each for each in report.troubles)
    assert report.counts["offsets-committed"] == 0


@pytest.mark.parametrize("flow", FLOWS, ids=str)
def test_records_that_arrive_between_the_reads_of_the_two_maps_are_not_skipped(flow: FlowName) -> None:
    """The flow to where the group goes must be read last: what it has not copied yet, the other has not seen.

    Nor may the other one be looked at again behind what was read of it: it comes back with what is produced there next.
    """
    groups = TwoWayGroups(TwoWayWorld(FLOWS), frozenset({THERE}))
    groups.world.produce("us-east", 2)
    groups.world.produce("eu-west", 2)
    groups.world.settle()
    groups.consume(flow.source, "shop")
    groups.world.produce(flow.source, 1)  # not read by the group, and on its way
    translator = groups._rounds[THERE].translator
    plainly = translator.at_source

    def with_arrivals(call: Callable[[Deadline], Any], deadline: Deadline) -> Any:
        translator.at_source = plainly
        found = call(deadline)
        groups.world.settle()
        groups.world.produce(flow.target, 1)
        groups.world.settle()
        return found

    translator.at_source = with_arrivals
    groups.act(THERE)

    groups.consume(flow.target, "shop")
    assert len(set(groups.read["shop"])) == 6


def test_records_that_both_logs_have_in_another_order_are_read_again_and_counted() -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), frozenset())
    groups.world.produce("us-east")  # 0
    groups.world.produce("eu-west")  # 1
    groups.world.settle()  # us-east has 0 1, and eu-west has 1 0
    groups.consume("us-east", "shop", 1)
    groups.until_still()

    assert groups.act(THERE).counts["reread-records-max"] == 1
    assert groups.consume("eu-west", "shop") == [b"1", b"0"]


@pytest.mark.parametrize("reverse", REVERSES, ids=["neither", "one", "both"])
def test_an_operators_rewind_of_an_idle_group_is_not_undone_by_either_flow(reverse: frozenset[FlowName]) -> None:
    groups = TwoWayGroups(TwoWayWorld(FLOWS), reverse)
    groups.world.produce("us-east", 4)
    groups.world.settle()
    groups.consume("us-east", "shop")
    groups.until_still()

    groups.groups["us-east"].put("shop", PLACE, 1)
    groups.until_still()

    assert groups.groups["us-east"].offsets["shop"][PLACE].offset == 1
