"""Clusters that replicate to each other: every record comes to each once, and groups go on without a gap.

Places are drawn: capitals are records that were produced on that side, small letters their copies, `.` is a marker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import RUNNING, Head, LaneState, Stop
from mirrorless.chain.run import Run
from mirrorless.protocol.plan import plan_lane
from mirrorless.protocol.translate import NOWHERE, OneWay, Translation, TranslationState, TwoWayPlace, place_there
from mirrorless.records.origin import ORIGIN_HEADER, OriginRule
from mirrorless.records.record import Headers, Record
from tests.support.chains import LANE, MemoryChains, run
from tests.support.tries import tries
from tests.support.two_way_world import TOPIC, T, TwoWayWorld

OUT = Lane(FlowName("us-east", "eu-west"), "orders", 0)
BACK = Lane(OUT.flow.turned, "orders", 0)

# here   A B x C y
# there  X a b Y c
A_B, C = run(0, 2, (0, 1, 2), lane=OUT), run(2, 4, (3, 4, 1), lane=OUT)
X, Y, C_IS_KNOWN = run(0, 1, (0, 2, 1), lane=BACK), run(1, 4, (3, 4, 1), lane=BACK), run(4, 5, lane=BACK)

# here   x A B
# there  a X b
COPIED_FIRST = run(0, 2, (1, 0, 1), lane=OUT), run(2, 3, (2, 2, 1), lane=OUT)
OWN_SECOND = run(0, 2, (1, 0, 1), lane=BACK), run(2, 3, lane=BACK)

# here   A x
# there  a X
UNREAD = (run(0, 1, (0, 0, 1), lane=OUT),)
UNREAD_BACK = (run(0, 2, (1, 1, 1), lane=BACK),)

# here   x . A
# there  X a
BEHIND_A_MARKER = run(0, 3, (2, 1, 1), lane=OUT)
ONLY_X = run(0, 1, (0, 0, 1), lane=BACK)


def chains_of(*runs: Run) -> MemoryChains:
    chains = MemoryChains()
    for each in runs:
        chains.prepare([each])
    return chains


def place(
    chains: MemoryChains, offset: int, stable_end: int | None = None, heads: Mapping[Lane, Head] | None = None
) -> TwoWayPlace:
    heads = heads or chains.heads([OUT, BACK])
    out, back = (OneWay.of(chains, lane, heads[lane]) for lane in (OUT, BACK))
    return place_there(out, back, offset, stable_end=stable_end)


def answer(at: int, state: TranslationState, *parts: int | None, reread: int = 0, lags: bool = False) -> TwoWayPlace:
    copied, produced = parts
    found = Translation(offset=at, state=state)
    return TwoWayPlace(found=found, reread=reread, lags=lags, parts=(copied, produced))


@pytest.mark.parametrize(
    ("runs", "offset", "stable_end", "expected"),
    [
        # Whatever was produced there before the first copy here is unread, and so is X: no map shows more.
        ((A_B, C, X, Y, C_IS_KNOWN), 0, None, answer(0, "before_map", 1, 0)),
        ((A_B, C, X, Y, C_IS_KNOWN), 1, None, answer(0, "before_map", 2, 0, reread=1)),
        ((A_B, C, X, Y, C_IS_KNOWN), 2, None, answer(0, "next_record", 4, 0, reread=2)),
        ((A_B, C, X, Y, C_IS_KNOWN), 3, None, answer(3, "next_record", 4, 3)),
        ((A_B, C, X, Y, C_IS_KNOWN), 4, None, answer(3, "next_record", None, 3, reread=1)),
        # The flow from here has not passed y yet.
        ((A_B, C, X, Y, C_IS_KNOWN), 5, None, answer(5, "ahead_of_replication", None, 5)),
        ((A_B, C, run(4, 5, lane=OUT), X, Y, C_IS_KNOWN), 5, None, answer(5, "exact", None, 5)),
        # Behind the last marker: all is read if nothing is undecided below.
        ((A_B, C, run(4, 6, lane=OUT), X, Y, C_IS_KNOWN), 6, 6, answer(5, "exact", None, 5)),
        (
            (A_B, C, run(4, 6, lane=OUT), X, Y, C_IS_KNOWN),
            6,
            None,
            answer(5, "ahead_of_replication", None, 5, lags=True),
        ),
        # The flow from there has not come as far as the other one: what it has not read counts as unread.
        ((A_B, C, X), 3, None, answer(1, "ahead_of_replication", 4, 1, reread=2, lags=True)),
        ((A_B, C, X), 4, 4, answer(1, "ahead_of_replication", None, 1, reread=3, lags=True)),
        # Nothing was copied there after what the group has read.
        ((A_B, X, Y, C_IS_KNOWN), 2, None, answer(0, "next_record", None, 0, reread=2)),
        ((A_B, X, Y, C_IS_KNOWN), 3, None, answer(3, "ahead_of_replication", None, 3)),
        ((X, Y, C_IS_KNOWN), 0, None, answer(0, "before_map", None, 0)),
        ((X, Y, C_IS_KNOWN), 2, None, answer(0, "ahead_of_replication", None, 0)),
        # A copy stands before what was produced there.
        ((*UNREAD, *UNREAD_BACK), 0, None, answer(0, "before_map", 0, 1)),
        ((*COPIED_FIRST, *OWN_SECOND), 0, None, answer(0, "next_record", 0, 1)),
        ((*COPIED_FIRST, *OWN_SECOND), 1, None, answer(0, "exact", 0, 3, reread=1)),
        ((*COPIED_FIRST, *OWN_SECOND), 2, None, answer(2, "exact", 2, 3)),
        # Both kinds begin at one place: what stands there was copied, and the other flow has not read it.
        ((BEHIND_A_MARKER, ONLY_X), 1, None, answer(1, "next_record", 1, 1)),
    ],
)
def test_a_group_goes_on_at_the_first_record_there_that_it_has_not_read(
    runs: tuple[Run, ...], offset: int, stable_end: int | None, expected: TwoWayPlace
) -> None:
    assert place(chains_of(*runs), offset, stable_end) == expected


@pytest.mark.parametrize("side", [OUT, BACK])
def test_a_stopped_lane_of_either_flow_whose_map_is_not_true_gives_no_place(side: Lane) -> None:
    chains = chains_of(A_B, C, X, Y, C_IS_KNOWN)
    heads = chains.heads([OUT, BACK])

    lost = place(chains, 3, heads=heads | {side: replace(heads[side], untrue_from=0)})

    assert lost == TwoWayPlace(found=Translation(offset=None, state="map_lost"))
    assert place(chains, 3, heads=heads).found.offset == 3


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, answer(1, "before_map", 2, 1)), (1, answer(2, "before_map", 2, 3))]
)
def test_a_place_behind_links_that_have_expired_is_the_oldest_of_the_map(offset: int, expected: TwoWayPlace) -> None:
    chains = chains_of(*COPIED_FIRST, *OWN_SECOND)
    chains.replace_link(COPIED_FIRST[0], None)

    assert place(chains, offset) == expected


def test_without_a_map_of_the_flow_from_there_nothing_is_known() -> None:
    assert place(chains_of(A_B, C), 1) == NOWHERE


@pytest.mark.parametrize("offset", range(6))
@pytest.mark.parametrize(
    ("runs", "later"),
    [
        ((A_B, C, X), (Y, C_IS_KNOWN, run(4, 6, lane=OUT))),
        ((*COPIED_FIRST, *OWN_SECOND), (run(3, 9, (5, 3, 2), lane=BACK),)),
    ],
)
def test_a_place_is_that_of_the_heads_as_they_were_read(
    runs: tuple[Run, ...], later: tuple[Run, ...], offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads and the log's end are read in an order; a head that was read later would have what they have not."""
    chains = chains_of(*runs)
    heads, before = chains.heads([OUT, BACK]), place(chains, offset)
    for each in later:
        chains.prepare([each])
    monkeypatch.setattr(chains, "heads", None)  # not read again

    assert place(chains, offset, heads=heads) == before


# Flows that keep names in both directions

THERE, HERE = OUT.flow, BACK.flow
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
    world = TwoWayWorld([THERE, HERE])
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
@given(st.sampled_from([[THERE, HERE], RING]), st.lists(ACTIONS, max_size=25))
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
    world = happened([THERE, HERE], actions, die=False)
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
    world = happened([THERE, HERE], actions, die=False)
    world.produce("us-east")
    world.settle()
    for flow in world.flows:
        end = world.visible(flow.source)[-1].offset + 1
        place = world.place(flow, end)
        assert place.found.state == "exact"
        assert place.reread == 0
        assert place.found.offset is not None
        assert not [each for each in world.visible(flow.target) if each.offset >= place.found.offset]
