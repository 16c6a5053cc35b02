"""Offset translation compared with the places of records: every upstream offset of a lane.

A whole lane has tens of thousands of offsets, and `OffsetMap` reads the store for each. So the lane's chain is loaded
once, and the very same `OffsetMap` works on the loaded links; a random sample of offsets goes through the store itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Literal, NamedTuple, cast

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Link
from mirrorless.ports.stores import Chains
from mirrorless.protocol.translate import OffsetMap, Translation

PAGE = 500
"""Links read at a time."""
SAMPLE = 4
"""Offsets of each lane that are translated through the store."""
GAP_ENDS = 1000
STATES = {
    "record": {"exact"},
    "gap": {"next_record"},
    "end": {"exact"},
    "beyond": {"exact", "ahead_of_replication"},
}


class LoadedChains:
    """The newest generation of one lane's chain, read once. It has the reads of `Chains`, and no writes."""

    def __init__(self, chains: Chains, lane: Lane) -> None:
        self._head = chains.heads([lane])[lane]
        self._links: list[Link] = []
        at = -1
        while page := chains.after(lane, self._head.generation, at, limit=PAGE):
            self._links += page
            at = page[-1].position
        self._positions = [link.position for link in self._links]

    def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        """See `Chains.heads`."""
        return dict.fromkeys(lanes, self._head)

    def at_or_before(
        self,
        lane: Lane,  # noqa: ARG002  the port's arguments
        generation: int,  # noqa: ARG002  same
        upstream: int,
        *,
        head: Head | None = None,  # noqa: ARG002  same
    ) -> Link | None:
        """See `Chains.at_or_before`."""
        count = bisect_right(self._positions, upstream)
        return self._links[count - 1] if count else None

    def after(
        self,
        lane: Lane,  # noqa: ARG002  same
        generation: int,  # noqa: ARG002  same
        upstream: int,
        *,
        limit: int,
        head: Head | None = None,  # noqa: ARG002  same
    ) -> list[Link]:
        """See `Chains.after`."""
        first = bisect_right(self._positions, upstream)
        return self._links[first : first + limit]

    def offset_map(self) -> OffsetMap:
        """The product's own translation on these links; it only reads."""
        return OffsetMap(cast("Chains", self))


class Expected(NamedTuple):
    """What the map has to answer about one upstream offset."""

    upstream: int
    downstream: int
    kind: Literal["record", "gap", "end", "beyond"]
    """
    record  it stands there, and is found back from there
    gap     no record: the next one that exists
    end     right behind the last record: the end of the map, and back from there
    beyond  what lies between there and the stable end: the end of the map, whether or not a batch came by since
    """


def expectations(upstream: Sequence[int], places: Mapping[int, int], *, end: int, begin: int = 0) -> Iterator[Expected]:
    """Every upstream offset of a lane from `begin` up to `end`, with its true place downstream.

    Records without a partner have no place, nor has a gap before one: those are findings of another kind.
    """
    at = begin
    after_last: int | None = None
    for offset in upstream:
        place = places.get(offset)
        after_last = None if place is None else place + 1
        if place is not None:
            for gap in _thinned(range(at, offset)):
                yield Expected(gap, place, "gap")
            yield Expected(offset, place, "record")
        at = offset + 1
    if after_last is not None:
        yield Expected(at, after_last, "end")
        for beyond in _thinned(range(at + 1, end + 1)):
            yield Expected(beyond, after_last, "beyond")


def count_mistranslated(
    chains: Chains,
    lane: Lane,
    *,
    upstream: Sequence[int],
    places: Mapping[int, int],
    end: int,
    seed: int,
    begin: int = 0,
) -> int:
    """How many upstream offsets the map places wrongly, or does not find back; each counts once.

    Args:
        chains: the store.
        lane: whose chain translates.
        upstream: offsets of the lane's visible records, growing.
        places: those of them that arrived, each with its downstream offset.
        end: the source's last stable offset.
        seed: of the sample that goes through the store.
        begin: the first upstream offset of the chain's newest generation.
    """
    expected = list(expectations(upstream, places, end=end, begin=begin))
    loaded = LoadedChains(chains, lane).offset_map()
    wrong = {each.upstream for each in expected if not _holds(loaded, lane, each)}
    stored = OffsetMap(chains)
    sample = Random(seed).sample(expected, min(SAMPLE, len(expected)))  # noqa: S311 -- a sample, not a secret
    return len(wrong | {each.upstream for each in sample if not _holds(stored, lane, each)})


def _thinned(gap: range) -> Iterable[int]:
    """All of a gap; of a huge one, as retention leaves behind, both ends."""
    return gap if len(gap) <= 2 * GAP_ENDS else (*gap[:GAP_ENDS], *gap[-GAP_ENDS:])


def _holds(offsets: OffsetMap, lane: Lane, expected: Expected) -> bool:
    there = offsets.downstream(lane, expected.upstream)
    if there.offset != expected.downstream or there.state not in STATES[expected.kind]:
        return False
    if expected.kind in {"gap", "beyond"}:
        return True
    back = offsets.upstream(lane, expected.downstream)
    if expected.kind == "record":
        return back == Translation(offset=expected.upstream, state="exact")
    # The way back from the end leads to the lane's position: quarantined records may lie before it.
    return back.state == "exact" and back.offset is not None and back.offset >= expected.upstream
