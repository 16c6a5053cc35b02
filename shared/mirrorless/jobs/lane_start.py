"""Where a job goes on with a lane: whether its log is still the one of its chain, and whether records before it count.

The last record of the chain's newest run is read once more. A topic that was deleted and created again has another one
there, or none yet: what the job copied would stand behind records of a topic that is gone.

A mapping that reads from the end makes a lane begin there: its first run passes over the offsets before. Where a job
has examined those there is no record; otherwise the log shows whether there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirrorless.errors import ChainBroken, RecordsGone
from mirrorless.jobs.copy_task import LaneLog, OffsetRange
from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.operator_commands import reset_lane
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import Chains
from mirrorless.protocol.replay_check import contradiction
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
    return [] if head.run is None else chains.after(lane, head.generation, -1, limit=LINKS, head=head)


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


def refuse_another_log(lane: Lane, run: Run | None, log: LaneLog, place: TopicPartition) -> None:
    """Refuse to go on in a log that is not the one from which the lane was copied.

    Args:
        lane: of the chain.
        run: its newest one, committed.
        log: the one to go on in.
        place: the topic-partition there.

    Raises:
        ChainBroken: its records are others.
        Retriable: the cluster does not answer.
    """
    if run is None or not run.spans:
        return
    last = run.spans[-1].upstream + run.spans[-1].length - 1
    bounds = log.bounds(*place, lambda: CHUNK_SECONDS)
    if last < bounds.first:
        return  # retention has deleted it
    if last >= bounds.next:
        reason = f"the log ends at {bounds.next}"
    else:
        chunks = log.read(*place, OffsetRange(last, last + 1), lambda: CHUNK_SECONDS)
        found = contradiction([record for chunk in chunks for record in chunk.records], [run])
        if found is None:
            return
        reason = found[1]
    again = "copy the new topic into another one (`into`)" if lane.is_of_a_job else reset_lane(lane, "earliest")
    raise ChainBroken(
        f"{place[0]}-{place[1]} is not the log that was copied up to here: {reason}. The topic was deleted and created "
        "again, or truncated",
        where=lane.at(last),
        hint=f"nothing of the new topic was copied. To copy it from its first record: {again}, and start a new job",
    )


def _holds_a_record(lane: Lane, between: OffsetRange, log: LaneLog) -> bool:
    try:
        chunks = log.read(lane.topic, lane.partition, between, lambda: CHUNK_SECONDS)
        return any(chunk.records for chunk in chunks)
    except RecordsGone:
        return False  # deleted records cannot be put there
