"""The drain of a source that stands still: every record is on the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mirrorless.failover.work import Done, FailoverWork, Unfinished
from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.reports.format import numbered

STUCK_SECONDS: Final = 180.0
"""Without any progress, until the step gives up: a cold function starts within seconds, a poller within minutes."""

NAMED: Final = 3


def drain(work: FailoverWork) -> Done:
    """Wait until each chain has passed the source's last record. Behind it there may be markers of transactions.

    Raises:
        Unfinished: nothing moves any more.
        Retriable: a cluster or the store does not answer.
    """
    count = drain_to(work, work.document.facts("standstill")["ends"])
    return Done(said=f"{work.flow.target} has every record of {numbered(count, 'partition')}", facts={"lanes": count})


def drain_to(work: FailoverWork, ends: Mapping[str, Sequence[int]]) -> int:
    """Wait until each chain has passed these offsets of its topic's partitions; how many lanes these are.

    Raises: as `drain`.
    """
    effects = work.effects
    places = work.lanes(but_stopped=True)
    wanted = {lane: ends[lane.topic][lane.partition] for lane in places}
    waiting, before = dict(wanted), dict[Lane, int]()
    moved_at = effects.clock()
    while waiting:
        heads = effects.chains.heads(waiting)
        behind = {lane: head for lane, head in heads.items() if head.in_doubt or head.position < waiting[lane]}
        # A lane that has not moved since the last look may have nothing but markers before it.
        resting = {
            lane: head for lane, head in behind.items() if not head.in_doubt and before.get(lane) == head.position
        }
        drained = _nothing_visible(work, resting, waiting)
        positions = {lane: head.position for lane, head in heads.items()}
        if any(before.get(lane) != position for lane, position in positions.items()):
            moved_at = effects.clock()
        before, waiting = positions, {lane: waiting[lane] for lane in behind if lane not in drained}
        if not waiting:
            break
        names = [str(lane) for lane in sorted(waiting)]
        some = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        if effects.clock() > moved_at + int(STUCK_SECONDS * 1000):
            raise Unfinished(
                f"records wait on {work.flow.source} and nothing moves: {some}",
                where=str(work.flow),
                hint=f"see `mirrorless status '{work.flow}'`; then run the same command again",
            )
        work.wait_for(f"{len(waiting)} of {len(wanted)} partitions to be replicated: {some}")
        work.pause()
    return len(wanted)


def _nothing_visible(work: FailoverWork, lanes: Mapping[Lane, Head], ends: Mapping[Lane, int]) -> set[Lane]:
    """Those of some lanes with no visible record between position and end."""
    if not lanes:
        return set()
    ranges = {(lane.topic, lane.partition): [(head.position, ends[lane])] for lane, head in lanes.items()}
    seen = work.effects.source_records.look(ranges, committed=True, deadline=work.within())
    found = {lane: seen.get((lane.topic, lane.partition)) for lane in lanes}
    return {lane for lane, look in found.items() if look is not None and look.until >= ends[lane] and not look.visible}
