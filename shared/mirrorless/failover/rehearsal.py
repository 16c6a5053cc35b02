"""The groups of a drill: names of the drill's own, with the offsets at which the real ones would go on.

Nothing of an application is touched: its groups, members and topics stay as they are, on both clusters.
"""

from __future__ import annotations

from typing import Final

from mirrorless.failover.groups import checkpoints_of
from mirrorless.failover.work import Done, FailoverWork
from mirrorless.naming import OWN_GROUPS
from mirrorless.ports.kafka import OffsetAndMetadata, TopicPartition

SHADOW: Final = f"{OWN_GROUPS}drill."
"""Prefix of the drill's groups. Groups of the replication are never followed."""

READ_SECONDS: Final = 60.0


def commit_shadows(work: FailoverWork) -> Done:
    """Commit for the shadow of each group, read it back, and read the first record at each of its offsets.

    Raises:
        Retriable: the target or a store does not answer.
    """
    effects, began = work.effects, work.effects.clock()
    offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
    left: dict[str, str] = {}
    for group in checkpoints_of(work):
        known = {
            (effects.remote_topic(lane.topic), lane.partition): OffsetAndMetadata(offset.downstream)
            for lane, offset in group.lanes(work.flow)
            if offset.usable and offset.downstream is not None and lane.topic in work.topics
        }
        if known:
            offsets[group.group] = known
        else:
            left[group.group] = group.readiness
    for name, known in offsets.items():
        effects.shadows.commit(shadow(work, name), known, work.within())
        work.keep()
    found = effects.shadows.committed([shadow(work, name) for name in offsets], work.within())
    differing = [name for name, known in offsets.items() if dict(found.get(shadow(work, name), {})) != known]
    first = _readable(work, {(place, at.offset) for known in offsets.values() for place, at in known.items()})
    return Done(
        said=f"{len(offsets) - len(differing):,} of {len(offsets) + len(left):,} groups would go on",
        facts={
            "groups": sorted(offsets),
            "left": left,
            "differing": differing,
            "read": first,
            "recovery_seconds": (effects.clock() - began) / 1000,
        },
        commands=tuple(f"committed for {shadow(work, name)} on {work.flow.target}" for name in offsets),
    )


def _readable(work: FailoverWork, starts: set[tuple[TopicPartition, int]]) -> int:
    """How many partitions have shown the first record that a group would read. Behind the end there is none."""
    effects = work.effects
    lowest: dict[TopicPartition, int] = {}
    for place, offset in starts:
        lowest[place] = min(offset, lowest.get(place, offset))
    ends = effects.target.ends(list(lowest), work.within())
    wanted = {
        place: (offset, offset + 1) for place, offset in lowest.items() if place in ends and offset < ends[place][1]
    }
    return sum(1 for _ in effects.target_records.ranges(wanted, work.within(READ_SECONDS))) if wanted else 0


def shadow(work: FailoverWork, group: str) -> str:
    """The drill's name for a group."""
    return _prefix(work) + group


def clean_up(work: FailoverWork) -> Done:
    """Delete the groups of all drills.

    Raises:
        Retriable: the target does not answer, or refuses.
    """
    shadows = [name for name in work.effects.shadows.names(work.within()) if name.startswith(_prefix(work))]
    if shadows:
        work.effects.shadows.delete(shadows, work.within())
    return Done(
        said=f"{len(shadows):,} groups of the drill were deleted",
        commands=tuple(f"deleted group {name} on {work.flow.target}" for name in shadows),
    )


def _prefix(work: FailoverWork) -> str:
    return f"{SHADOW}{work.flow.slug}."
