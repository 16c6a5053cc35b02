"""Translation of what MirrorMaker copied before a chain began, compared with every record of histories by chance."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mirrorless.chain.lane_state import NEW_LANE
from mirrorless.chain.run import Span
from mirrorless.lanes.taken_over import link_behind
from mirrorless.protocol.past import Pair, Past, PastStore, SyncedLane
from mirrorless.protocol.translate import NO_MAP, OffsetMap, Translation
from tests.support.chains import FLOW, LANE, MemoryChains, reset, run
from tests.support.copied_history import History
from tests.support.documents import MemoryDocuments


def past_of(history: History, noted: list[Pair] | None = None) -> tuple[Past, int]:
    """The past as the take-over finds it, and the place; an empty one where there is no place."""
    found = history.found()
    if found.place is None:
        assert "others like it" in found.why
        return Past.of(1, []), 0
    lane = SyncedLane.of(history.noted if noted is None else noted, found.tail, history.target_end)
    ours, theirs = ({each.offset: each.content for each in side} for side, _ in history.sides)
    same = {(u, d) for u, d in lane.to_confirm if u in ours and ours[u] == theirs.get(d)}
    spans = lane.past(same, start=history.target[0].offset, place=found.place, end=history.target_end)
    return Past.of(1, spans), found.place


@pytest.mark.parametrize("contents", [2**60, 400])
@pytest.mark.parametrize("seed", range(50))
def test_no_answer_is_behind_the_exact_place_nor_further_before_it_than_it_says(seed: int, contents: int) -> None:
    """Some of the target's first records have expired, and some records are like others."""
    chance = Random(seed)
    keys = chance.choice([0, 10]) if contents > 2**20 else 0
    history = History(chance, contents=contents, keys=keys, lag_max=chance.choice([0, 10, 100]))
    history.produce(chance.choice([30, 3_000] if contents > 2**20 else [100]))
    history.copy(chance.randint(1, 6), chance.choice([10, 1_000]))
    copies = list(zip(history.copied, (each.offset for each in history.target), strict=True))
    ever = copies
    history.expire(0, chance.choice([0, 0, len(history.target) // 3]))
    copies, start = copies[-len(history.target) :], history.target[0].offset

    past, place = past_of(history)

    for upstream in {*range(0, place, 1 + place // 60), place - 1} if place else ():
        found, unread = past.downstream(upstream), {u for u, _ in copies if u >= upstream}
        assert unread == {u for u, d in copies if u >= upstream and d >= found.offset}, "skips a record"
        assert found.furthest is not None
        exact = min((d for u, d in copies if u >= upstream and d >= found.offset), default=history.target_end)
        assert start <= found.offset <= exact <= found.furthest
        assert not found.exact or (upstream, found.offset) in copies
    for downstream in {*range(start, history.target_end, 1 + history.target_end // 60)} if place else ():
        back, read = past.upstream(downstream), {u for u, d in ever if d < downstream}
        if back is not None:
            assert back.furthest is not None
            assert back.offset <= min((u for u, _ in copies if u not in read), default=place), "skips a record"
            assert next((u for u, d in copies if d >= downstream), place) <= back.furthest
            assert not back.exact or (back.offset, downstream) in copies


TAIL = [Span(1_000, 1_000, 50), Span(1_060, 1_080, 15)]


@pytest.mark.parametrize(
    ("pairs", "stretches", "to_confirm"),
    [
        ([(500, 500), (1_010, 1_010)], 1, []),
        ([(500, 500), (500, 500)], 1, [(500, 500)]),
        ([(400, 400), (300, 500), (1_010, 1_010)], 2, [(400, 400)]),
        ([(1_055, 500), (1_010, 1_010), (1_070, 1_090)], 1, [(1_055, 500)]),
        ([(1_050, 500), (1_005, 1_060), (1_065, 1_085)], 1, [(1_050, 500)]),
        ([(500, 500), (1_013, 1_010)], 0, []),
        ([(500, 500), (600, 1_100)], 0, []),
        ([(1_000 - n, n) for n in range(30)], 20, [(1_000 - n, n) for n in range(10, 30)]),
    ],
    ids=[
        "they lead to the tail",
        "they end before it",
        "it began again",
        "the topic was made anew, and has grown beyond the one before",
        "it began again within the tail",
        "another flow's, by a record of the tail",
        "another flow's, by the end of the log",
        "too many lives",
    ],
)
def test_pairs_are_confirmed_where_nothing_else_shows_whose_they_are(
    pairs: list[Pair], stretches: int, to_confirm: list[Pair]
) -> None:
    lane = SyncedLane.of(pairs, TAIL, 1_100)

    assert (len(lane.stretches), lane.to_confirm) == (stretches, to_confirm)


def test_a_source_that_was_made_anew_gives_no_pairs_of_the_one_before() -> None:
    history = History(Random(1), contents=2**60, lag_max=10)
    history.produce(2_000)
    history.copy(1, 2_000)
    old, history.source, history.source_end, history.said = list(history.noted), [], 0, None
    begins = history.target_end
    history.produce(1_500)
    history.copy(1, 10_000)

    past, _ = past_of(history)

    first, *pairs = past.spans()
    assert (first.upstream, first.downstream) == (0, 0)
    assert old
    assert all(each.downstream >= begins for each in pairs)
    assert past.downstream(700).offset >= begins


def test_pairs_of_the_flow_in_the_other_direction_are_not_taken_for_this_ones() -> None:
    """Its topic of offset syncs has the same name on this cluster, where MirrorMaker is left to its defaults."""
    history = History(Random(2), contents=2**60)
    history.produce(9_000)
    history.copy(1, 30_000)
    history.said = history.copied[-5]
    others = [(u + 7, d) for u, d in history.noted]

    assert (
        len(past_of(history)[0].spans())
        > len(past_of(history, others)[0].spans())
        == len(past_of(history, [])[0].spans())
    )
    # Noted long ago, they do not reach to the tail: a comparison of the records tells.
    assert past_of(history, others[:3])[0] == past_of(history, [])[0]
    assert past_of(history, history.noted[:3])[0].downstream(history.noted[2][0]).exact


def test_a_past_has_room_in_a_few_kilobytes_however_long_it_was() -> None:
    pairs = [(offset, offset) for offset in range(0, 100_000_000, 1_001)]
    spans = SyncedLane.of(pairs, [], 100_000_000).past({pairs[-1]}, start=0, place=100_000_000, end=100_000_000)
    past = Past.of(1, spans)

    assert len(past.packed) < 16_000
    for lag in (50, 1_000, 100_000, 10_000_000):
        found = past.downstream(100_000_000 - lag)
        assert found.furthest is not None
        assert found.furthest - found.offset <= max(1_001, 1 + lag / 50)


# The documents, and the map that has them before its chain

PAST = [Span(0, 40, 0), Span(100, 140, 1), Span(200, 241, 3), Span(210, 250, 0)]
"""Records of [0, 210) at [40, 250); the chain begins at 210."""


def taken_over() -> tuple[MemoryChains, PastStore, OffsetMap]:
    chains, store = MemoryChains(), PastStore(documents=MemoryDocuments())
    store.begin(LANE, 1, PAST)
    chains.reset(link_behind(LANE, NEW_LANE, 210, now=1))
    return chains, store, OffsetMap(chains, store)


def at(offset: int | None, state: str, bound: int = 0) -> Translation:
    return Translation(offset=offset, state=state, bound=bound)  # type: ignore[arg-type]  # of the tables below


UPSTREAM = {
    50: at(40, "approximate", 100),
    100: at(140, "exact"),
    150: at(141, "approximate", 100),
    201: at(242, "exact"),
    205: at(244, "approximate", 6),
}
DOWNSTREAM = {
    140: at(100, "exact"),
    200: at(101, "approximate", 199),
    243: at(202, "exact"),
    245: at(203, "approximate", 13),
}


def test_offsets_before_the_chain_are_translated_with_their_bound_and_those_in_it_by_the_map() -> None:
    chains, _, offsets = taken_over()
    nothing_yet = {205: UPSTREAM[205], 210: at(250, "exact"), 212: at(250, "ahead_of_replication")}
    assert {each: offsets.downstream(LANE, each) for each in nothing_yet} == nothing_yet
    back = {100: NO_MAP, 250: at(210, "exact"), 251: at(210, "exact"), 252: at(210, "ahead_of_replication")}
    assert {each: offsets.upstream(LANE, each, stable_end=251) for each in back} == back

    assert offsets.upstream(LANE, 250) == at(210, "exact")

    chains.prepare([run(210, 220, (212, 252, 8), generation=1)])

    assert {each: offsets.downstream(LANE, each) for each in UPSTREAM} == UPSTREAM
    assert {each: offsets.upstream(LANE, each) for each in DOWNSTREAM} == DOWNSTREAM
    assert offsets.downstream(LANE, 211) == at(252, "next_record")
    assert offsets.upstream(LANE, 100) == at(212, "before_map")
    assert offsets.records_between(LANE, 241, 255, "downstream") == 9 + 3
    assert OffsetMap(chains).downstream(LANE, 150) == at(252, "before_map")


def test_a_past_stays_through_an_operators_reset_and_goes_as_far_as_the_map_was_untrue() -> None:
    chains, store, offsets = taken_over()
    chains.prepare([run(210, 220, (212, 252, 8), generation=1)])
    chains.reset(reset(220, 150, generation=1))
    assert (offsets.downstream(LANE, 150), offsets.downstream(LANE, 215)) == (UPSTREAM[150], NO_MAP)
    chains.prepare([run(150, 160, (150, 300, 10), generation=2)])
    assert {each: offsets.downstream(LANE, each) for each in (50, 100)} == {each: UPSTREAM[each] for each in (50, 100)}
    assert offsets.downstream(LANE, 150) == at(300, "exact")

    store.cut(LANE, 202)
    fresh = OffsetMap(chains, PastStore(documents=store.documents))
    assert fresh.downstream(LANE, 140) == UPSTREAM[150]
    assert store.of(LANE, 3) is not None
    assert PastStore(documents=store.documents).of(LANE, 3) == Past.of(1, [*PAST[:2], Span(200, 241, 2)])
    store.cut(LANE, 0)
    assert OffsetMap(chains, PastStore(documents=store.documents)).downstream(LANE, 100) == at(300, "before_map")


def test_a_past_that_lost_its_end_says_nothing_of_what_lies_behind() -> None:
    chains, store, _ = taken_over()
    store.cut(LANE, 202)

    assert OffsetMap(chains, PastStore(documents=store.documents)).downstream(LANE, 205) == NO_MAP


def test_a_remote_topic_that_was_made_anew_bounds_what_is_said_of_the_one_before() -> None:
    """Nobody has noticed: the chain says that its records stand further back."""
    chains, _, offsets = taken_over()
    chains.reset(reset(210, 0, generation=1))
    chains.prepare([run(90, 95, (90, 3, 5), generation=2)])

    assert offsets.downstream(LANE, 80) == at(3, "next_record")


def test_what_was_taken_over_again_has_both_pasts_as_far_as_the_target_keeps_them() -> None:
    """The second time is a command that was cut off before the link."""
    _, store, _ = taken_over()
    for _ in range(2):
        store.begin(LANE, 2, [Span(0, 200, 0), Span(300, 340, 5), Span(310, 360, 0)])

    assert PastStore(documents=store.documents).of(LANE, 2) == Past.of(
        2, [Span(0, 200, 0), *PAST[2:], Span(300, 340, 5), Span(310, 360, 0)]
    )


def test_a_past_that_was_written_is_read_and_none_of_a_first_chain_is_looked_for() -> None:
    documents = MemoryDocuments()
    stored = b'{"generation":1,"packed":"ACgAZGQBY2QDBwYA"}'
    documents.write(FLOW, {"past/orders/0/": stored, "past/orders/1/": b"", "past/orders/10/": b""})

    assert PastStore(documents=documents).of(LANE, 1) == Past.of(1, PAST)
    assert PastStore(documents=documents).of(replace(LANE, partition=1), 0) is None
