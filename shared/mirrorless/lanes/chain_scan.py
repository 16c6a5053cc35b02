"""The scan of a lane's chain since its last check: its committed runs in order, up to a run in doubt or the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.lanes.gaps import GapRange, gaps_of
from mirrorless.ports.stores import Chains
from mirrorless.run import Link, Reset, Run

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


def scan_chain(chains: Chains, lane: Lane, generation: int, since: int, *, head: Head | None = None) -> ChainScan:
    """Read a lane's chain from an upstream offset on, up to its head where that was read already.

    Expired links are skipped: their gaps were checked, or cannot be known any more.

    Raises:
        Retriable: the store does not answer.
    """
    gaps: list[GapRange] = []
    at = (generation, since)
    for number, link in enumerate(_links(chains, lane, generation, since, head)):
        if isinstance(link, Reset):
            following = (link.to_generation, link.next)
            if gaps:
                return ChainScan(generation=at[0], gaps=tuple(gaps), then=following, closed=True, complete=False)
            at = following
            continue
        if link.state == "prepared":
            return ChainScan(generation=at[0], gaps=tuple(gaps), then=at, doubt=link)
        gaps += gaps_of(link, at[1])
        at = (link.generation, link.next)
        if number >= LINKS:
            return ChainScan(generation=at[0], gaps=tuple(gaps), then=at, complete=False)
    return ChainScan(generation=at[0], gaps=tuple(gaps), then=at)


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
