"""Lanes that MirrorMaker 2 copied before, and the link with which a chain begins behind what it has copied.

    take over    a lane without a chain: the link is its first, and its position that of every new lane
    give back    MirrorMaker goes on at the positions of the chains, which are noted
    take again   a lane that stands where it was given back: its chain is closed, and goes on further

The link is that of a reset: translation speaks of what lies behind it, and what lies before is no gap of the flow's.
Pure but for the document of what was given back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from mirrorless.chain.lane import FlowName, Lane, by_lane, by_topic
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.chain.run import Link, Reset
from mirrorless.ports.stores import StateStore

REASON: Final = "taken over from MirrorMaker 2"
_GIVEN_BACK: Final = "given-back"


def link_behind(lane: Lane, head: Head, place: int, *, now: int) -> Reset:
    """The link with which a lane goes on behind what MirrorMaker has copied.

    Args:
        lane: whose.
        head: of its chain.
        place: the upstream offset behind the last record copied.
        now: ms since the epoch.
    """
    return Reset(
        lane=lane,
        generation=head.generation,
        position=head.position,
        to_generation=head.generation + 1,
        next=place,
        reason=REASON,
        at=now,
    )


def was_taken_over(link: Link | None) -> bool:
    """Whether a link begins a chain behind what MirrorMaker had copied."""
    return isinstance(link, Reset) and link.reason == REASON


def may_begin(head: Head, given_back_at: int | None) -> bool:
    """Whether a lane is MirrorMaker's: it has no chain, or its chain ends where the lane was given back."""
    return head == NEW_LANE or (not head.in_doubt and head.position == given_back_at)


def read_given_back(documents: StateStore, flow: FlowName) -> dict[Lane, int]:
    """The positions at which lanes were given back.

    Raises:
        Retriable: the store does not answer.
    """
    text = documents.read(flow, _GIVEN_BACK).get(_GIVEN_BACK)
    found = {} if text is None else msgspec.json.decode(text, type=dict[str, dict[int, int]])
    return by_lane(flow, found)


def write_given_back(documents: StateStore, flow: FlowName, positions: Mapping[Lane, int]) -> None:
    """Note the positions at which lanes are given back, beside those of other lanes.

    Raises:
        Retriable: the store does not answer.
    """
    found = by_topic(read_given_back(documents, flow) | dict(positions))
    documents.write(flow, {_GIVEN_BACK: msgspec.json.encode(found)})
