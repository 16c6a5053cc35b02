"""Ends that stand still: nobody writes, and no transaction is open. The same for the source and for the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mirrorless.failover.both_ways import produce_nothing
from mirrorless.failover.effects import FailoverSide
from mirrorless.failover.plan import still_seconds
from mirrorless.failover.work import Done, FailoverWork, Unfinished
from mirrorless.ports.kafka import LogEnds, TopicPartition

LIMIT_SECONDS: Final = 600.0
"""Until a step gives up: an open transaction may take 15 minutes to time out, and the operator sees which."""

NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The ends of partitions, and since when they are so. Pure."""

    ends: Mapping[TopicPartition, LogEnds] = field(default_factory=dict)
    since: int = 0
    """ms since the epoch."""
    moved: frozenset[TopicPartition] = frozenset()
    """Those that the last look found elsewhere, or with an open transaction."""

    def after(self, ends: Mapping[TopicPartition, LogEnds], now: int) -> Standing:
        """After another look."""
        open_ = {place for place, (_, stable, end) in ends.items() if stable < end}
        moved = {place for place in ends.keys() | self.ends.keys() if _end(ends, place) != _end(self.ends, place)}
        return Standing(ends=ends, since=now if moved or open_ else self.since, moved=frozenset(moved | open_))

    def seconds(self, now: int) -> float:
        """For how long they have stood still."""
        return (now - self.since) / 1000


def _end(ends: Mapping[TopicPartition, LogEnds], place: TopicPartition) -> int | None:
    return ends[place][2] if place in ends else None


def stand_still(work: FailoverWork) -> Done:
    """Wait until the source's ends, or on the way back the target's, have stood still for long enough.

    Raises:
        Unfinished: they do not, in time.
        Retriable: the cluster does not answer.
    """
    back = work.document.back is not None
    if work.effects.both_ways and not back:
        return produce_nothing(work)
    effects, flow = work.effects, work.flow
    side, alias = (effects.target, flow.target) if back else (effects.source, flow.source)
    names = {topic: effects.remote_topic(topic) if back else topic for topic in work.topics}
    places = [(names[topic], partition) for topic, count in work.topics.items() for partition in range(count)]
    usual = still_seconds(work.document.order, back=back)
    wanted = work.still_seconds if work.still_seconds is not None else float(usual)
    standing = _wait(work, side, alias, places, wanted)
    ends = {
        topic: [standing.ends.get((names[topic], partition), (0, 0, 0))[1] for partition in range(count)]
        for topic, count in work.topics.items()
    }
    return Done(
        said=f"no end on {alias} has moved for {wanted:g} s, and no transaction is open",
        facts={"ends": ends, "at": effects.clock()},
    )


def _wait(work: FailoverWork, side: FailoverSide, alias: str, places: list[TopicPartition], wanted: float) -> Standing:
    clock = work.effects.clock
    until, standing = clock() + int(LIMIT_SECONDS * 1000), Standing(since=clock())
    first = True
    while first or standing.seconds(clock()) < wanted:
        standing = standing.after(side.ends(places, work.within()), clock())
        if clock() > until:
            raise Unfinished(
                f"{alias} is still written to, or has an open transaction: {_some(standing)}",
                where=str(work.flow),
                hint="stop that producer, and run the same command again",
            )
        if standing.moved and not first:
            work.wait_for(f"producers of {alias} to stop: {_some(standing)} has moved, or has an open transaction")
        first = False
        if standing.seconds(clock()) < wanted:
            work.pause()
    return standing


def _some(standing: Standing) -> str:
    names = [f"{topic}-{partition}" for topic, partition in sorted(standing.moved)]
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
