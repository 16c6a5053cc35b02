"""Where a group goes on between clusters that replicate to each other: each answer, by maps as they are drawn.

Capitals are records that were produced on that side, small letters their copies, `.` is a marker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Run
from mirrorless.protocol.translate import Translation, TranslationState
from mirrorless.protocol.two_way import NOWHERE, OneWay, TwoWayPlace, place_there
from tests.support.chains import MemoryChains, run

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
