"""The scan of a lane's chain since its last check: its committed runs in order, up to a run in doubt or the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mirrorless.chain.claims import ClaimWalk
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Link, Reset, Run
from mirrorless.lanes.check_state import UNKNOWN
from mirrorless.lanes.gaps import GapRange, gaps_of
from mirrorless.ports.stores import Chains

PAGE: Final = 100
"""Links of one read."""

LINKS: Final = 1_000
"""Links of one scan: a long backlog is scanned over several rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainScan:
    """A part of one generation of a lane's chain."""

    generation: int
    gaps: tuple[GapRange, ...]
    """All of this generation, ascending and disjoint."""
    then: tuple[int, int]
    """Generation and upstream offset where the next scan starts, once every gap is explained."""
    closed: bool = False
    """Whether a reset closed this generation: the source may have changed since the gaps arose."""
    doubt: Run | None = None
    """The run at the end, if it is only prepared."""
    complete: bool = True
    """Whether the scan reached the end of the chain."""
    beside: tuple[GapRange, ...] = ()
    """Downstream offsets between claims, where there is room for more than the marker of a transaction."""
    claimed: int = UNKNOWN
    """The downstream offset behind the last claim."""


def scan_chain(
    chains: Chains, lane: Lane, generation: int, since: int, *, claimed: int = UNKNOWN, head: Head | None = None
) -> ChainScan:
    """Read a lane's chain from an upstream offset on, up to its head where that was read already.

    Expired links are skipped: their gaps were checked, or cannot be known any more.

    Args:
        chains: the store.
        lane: whose.
        generation: with which to begin.
        since: the upstream offset, in it.
        claimed: the downstream offset behind what runs before it claim.
        head: as in `Chains.after`.

    Raises:
        Retriable: the store does not answer.
    """
    gaps: list[GapRange] = []
    beside: list[GapRange] = []
    at, claims = (generation, since), ClaimWalk(None if claimed == UNKNOWN else claimed)

    def found(**how: Any) -> ChainScan:
        end = UNKNOWN if claims.end is None else claims.end
        return ChainScan(generation=at[0], gaps=tuple(gaps), beside=tuple(beside), claimed=end, **how)

    for number, link in enumerate(_links(chains, lane, generation, since, head)):
        if isinstance(link, Reset):
            following = (link.to_generation, link.next)
            claims.end = None  # the next generation may begin anywhere
            if gaps:
                return found(then=following, closed=True, complete=False)
            at = following
            continue
        if link.state == "prepared":
            return found(then=at, doubt=link)
        gaps += gaps_of(link, at[1])
        if link.generation == link.position == 0:
            claims = ClaimWalk(max(claims.end or 0, 0), marker=0)  # whatever stands before it is not of this flow
        elif (link.generation, link.position) > at:
            claims.end = None  # links between have expired
        beside += claims.room(link)
        at = (link.generation, link.next)
        if number >= LINKS:
            return found(then=at, complete=False)
    return found(then=at)


def _links(chains: Chains, lane: Lane, generation: int, since: int, head: Head | None) -> Iterator[Link]:
    """Every link that reaches beyond an upstream offset, in order, across resets."""
    page = chains.after(lane, generation, since - 1, limit=PAGE, head=head)
    if since > 0 and not (page and page[0].position == since):
        # The last check may have ended inside a run.
        before = chains.at_or_before(lane, generation, since, head=head)
        if isinstance(before, Run) and before.position < since < before.next:
            yield before
    while page:
        yield from page
        last = page[-1]
        if isinstance(last, Reset):
            generation, position = last.to_generation, -1
        elif len(page) < PAGE:
            return
        else:
            position = last.position
        page = chains.after(lane, generation, position, limit=PAGE, head=head)
