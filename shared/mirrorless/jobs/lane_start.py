"""The beginning of a lane's chain, and whether a job wants records before it.

A mapping that reads from the end makes a lane begin there: its first run passes over the offsets before. Where a job
has examined those there is no record; otherwise the log shows whether there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirrorless.errors import RecordsGone
from mirrorless.jobs.copy_task import LaneLog, OffsetRange
from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.ports.stores import Chains
from mirrorless.run import Link, Run

LINKS = 20
"""Links read to find the first that has a record."""

CHUNK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStart:
    """The beginning of a lane's chain, as far as it is kept."""

    begins: int | None
    """The first upstream offset that the chain has a record of; None where it has none."""
    before: bool
    """Whether a wanted record stands below it."""


def first_links(chains: Chains, lane: Lane, head: Head) -> list[Link]:
    """The first links of a lane's generation; none where it has no run.

    Raises:
        Retriable: the store does not answer.
    """
    return [] if head.run is None else chains.after(lane, head.generation, -1, limit=LINKS)


def beginning(lane: Lane, links: Sequence[Link], wanted: OffsetRange, log: LaneLog) -> LaneStart:
    """The beginning of a lane by its first links, and by the log where they do not suffice.

    Raises:
        Retriable: the cluster does not answer.
    """
    found = next((link for link in links if isinstance(link, Run) and link.spans), None)
    if found is None:
        return LaneStart(begins=None, before=False)
    begins = found.spans[0].upstream
    passed_by = [link for link in links if isinstance(link, Run) and link.position <= found.position]
    unread = [link for link in passed_by if not link.examined]
    if begins <= wanted.first or not unread:
        return LaneStart(begins=begins, before=False)
    first = max(wanted.first, unread[0].position)
    return LaneStart(begins=begins, before=_holds_a_record(lane, OffsetRange(first, min(begins, wanted.next)), log))


def _holds_a_record(lane: Lane, between: OffsetRange, log: LaneLog) -> bool:
    try:
        chunks = log.read(lane.topic, lane.partition, between, lambda: CHUNK_SECONDS)
        return any(chunk.records for chunk in chunks)
    except RecordsGone:
        return False  # deleted records cannot be put there
