"""The last look of a command at the cluster that was left: what came late there, and is not on the other one.

The ends that stood still are those of a moment. A producer may be silent for longer than that and write again, and one
goes on while a command that was cut off waits to be run again. What the look finds is replicated too, while nobody has
begun on the other side; what comes for ever is named, with counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.run import Run
from mirrorless.failover.refusals import replicated
from mirrorless.failover.work import Done, FailoverWork
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.lanes.gaps import GapRange, LogLooks, Look
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import links_after
from mirrorless.reconcile.copy_tasks import ReconciledLane
from mirrorless.reconcile.difference import apart
from mirrorless.reports.format import numbered

COUNT_SECONDS: Final = 60.0
"""For counting records one by one; of what is left then, offsets are counted."""


class LateRecords(msgspec.Struct, frozen=True, kw_only=True):
    """What one partition has and the other cluster has not."""

    topic: str
    """As it is called on the source."""
    partition: int
    first: int
    """The first offset of them there."""
    records: int
    """Visible ones."""
    offsets: int = 0
    """Beyond those: behind an open transaction, or too many to be counted one by one."""
    left: bool = False
    """Whether the lane was left alone, so that nothing more of it comes."""

    @property
    def words(self) -> str:
        """How many, and from where on."""
        counted = [numbered(self.records, "record")] if self.records else []
        counted += [f"{numbered(self.offsets, 'offset')} not counted one by one"] if self.offsets else []
        return f"{' and '.join(counted)} from offset {self.first} on of"


def look_again(work: FailoverWork) -> Done:
    """Compare what the cluster that was left has now with what was replicated, partition by partition.

    Raises:
        Retriable: a cluster or the store does not answer.
    """
    back = work.document.back is not None
    late = _on_target(work) if back else _on_source(work)
    left, other = (work.flow.target, work.flow.source) if back else (work.flow.source, work.flow.target)
    records = sum(each.records + each.offsets for each in late)
    return Done(
        said=f"{left} has {numbered(records, 'record')} of {numbered(len(late), 'partition')} that {other} has not"
        if late
        else f"{left} has nothing that {other} has not",
        facts={
            "late": msgspec.to_builtins(late),
            "named": [
                f"{work.effects.remote_topic(each.topic) if back else each.topic}-{each.partition}: {each.words} "
                f"{left} are not on {other}: {_why(work, each)}"
                for each in late
            ],
            "at": work.effects.clock(),
        },
    )


def _why(work: FailoverWork, late: LateRecords) -> str:
    if late.left:
        return "its lane was left alone"
    masked = work.effects.settings.rule_of(late.topic) is not None
    cure = "they stay there" if masked else "a failback counts them as orphans"
    if work.document.back is not None:
        cure = f"`mirrorless reconcile start '{work.flow}' {late.topic}` brings them"
    return f"they came late. Stop that producer; {cure}"


def late_of(facts: Mapping[str, Any]) -> list[LateRecords]:
    """The late records of a step's facts."""
    return msgspec.convert(facts.get("late", []), list[LateRecords])


def _on_source(work: FailoverWork) -> list[LateRecords]:
    """Records of the source beyond the positions, also of topics and partitions that are new."""
    effects = work.effects
    lanes = {
        Lane(work.flow, topic, partition): (topic, partition)
        for topic, count in replicated(effects).items()
        for partition in range(count)
    }
    waited, stood = work.lanes(but_stopped=True), work.document.facts("standstill").get("ends", {})
    left = work.lanes().keys() - waited.keys()
    drained = {lane: stood[lane.topic][lane.partition] for lane in waited if lane.topic in stood}
    ends = effects.source.ends(list(lanes.values()), work.within())
    heads = effects.chains.heads(lanes)
    behind = {
        lane: (first, *ends[place][1:])
        for lane, place in lanes.items()
        # Behind a lane's last record there may be markers, up to where it was drained.
        if place in ends and (first := max(heads[lane].position, drained.get(lane, 0), ends[place][0])) < ends[place][2]
    }
    counted = _counted(work, effects.source.looks, {lanes[lane]: [each[:2]] for lane, each in behind.items()})
    found = (
        counted[lanes[lane]].late(lane, hidden=(max(stable, first), high), left=lane in left)
        for lane, (first, stable, high) in sorted(behind.items())
    )
    return [late for late in found if late.records or late.offsets]


def _on_target(work: FailoverWork) -> list[LateRecords]:
    """Records of the target that the reconcile has not brought back, and that are no copies of the flow."""
    effects, lanes = work.effects, work.lanes()
    remote = {lane: (effects.remote_topic(lane.topic), lane.partition) for lane in lanes}
    ends = effects.target.ends(list(remote.values()), work.within())
    begins = _begins(work, remote)  # behind the ends: what the flow has written by then is in its chain
    wanted: dict[Lane, list[GapRange]] = {}
    for lane, first in begins.items():
        if remote[lane] in ends and first < ends[remote[lane]][2]:
            start, stable, _ = ends[remote[lane]]
            wanted[lane] = _unclaimed(work, lane, (max(first, start), stable))
    counted = _counted(work, effects.target.looks, {remote[lane]: some for lane, some in wanted.items()})
    alone = _left_alone(work)
    found = (
        counted[remote[lane]].late(
            lane, hidden=(max(ends[remote[lane]][1], begins[lane]), ends[remote[lane]][2]), left=lane in alone
        )
        for lane in sorted(wanted)
    )
    return [late for late in found if late.records or late.offsets]


def _begins(work: FailoverWork, remote: Mapping[Lane, TopicPartition]) -> dict[Lane, int]:
    """The offset of the target from which on each lane has records that the reconcile cannot have seen or taken."""
    chains, back = work.effects.chains, work.document.back
    stood = back.reconcile_ends if back is not None else {}
    heads, alone = chains.heads(remote), _left_alone(work)
    lanes = {
        lane: ReconciledLane(forward=lane, remote_topic=place[0], generation=heads[lane].generation).back
        for lane, place in remote.items()
    }
    copied = chains.heads(lanes.values())
    begins = {}
    for lane, head in heads.items():
        seen = stood.get(lane.topic, ())
        if lane in alone:
            end = (head.run.last_downstream or -1) + 1 if head.run is not None else 0
            begins[lane] = max(alone[lane], end, copied[lanes[lane]].position)
        elif lane.partition < len(seen):
            begins[lane] = max(seen[lane.partition], copied[lanes[lane]].position)
    return begins


def _left_alone(work: FailoverWork) -> dict[Lane, int]:
    """The lanes that the reconcile has left alone, with the ends of their chains on the target as far as known."""
    report = work.document.facts("reconcile").get("report", {})
    return {
        Lane(work.flow, each["topic"], each["partition"]): each.get("claimed_until", 0)
        for each in report.get("lanes", ())
        if each.get("differs")
    }


def _unclaimed(work: FailoverWork, lane: Lane, wanted: GapRange) -> list[GapRange]:
    """The parts of a range of the target that no run of the lane claims, of those behind the reconcile."""
    chains, back = work.effects.chains, work.document.back
    positions = back.reconcile_positions if back is not None else {}
    head = chains.heads([lane])[lane]
    links = links_after(chains, lane, head.generation, positions.get(str(lane), head.position) - 1)
    claimed = (
        OffsetRange(span.downstream, span.downstream + span.length)
        for link in links
        if isinstance(link, Run)
        for span in link.spans
    )
    return [(each.first, each.next) for each in apart(claimed, OffsetRange(*wanted))]


@dataclass(slots=True)
class _Count:
    """The visible records of some ranges of one partition."""

    left: list[GapRange]
    """What was not looked at yet."""
    records: int = 0
    first: int | None = None

    def take(self, look: Look) -> bool:
        """Add what was seen; whether the look has come further."""
        if look.visible and self.first is None:
            self.first = min(look.visible)
        self.records += len(look.visible)
        before, self.left = self.left, [(max(first, look.until), end) for first, end in self.left if look.until < end]
        return self.left != before

    def late(self, lane: Lane, *, hidden: GapRange, left: bool) -> LateRecords:
        """What it comes to. Args: hidden: the offsets behind the stable end; left: see `LateRecords`."""
        begins = [each for each in (self.first, self.left[0][0] if self.left else None, hidden[0]) if each is not None]
        return LateRecords(
            topic=lane.topic,
            partition=lane.partition,
            first=min(begins),
            records=self.records,
            offsets=sum(end - first for first, end in [*self.left, hidden]),
            left=left,
        )


def _counted(
    work: FailoverWork, log: LogLooks, ranges: Mapping[TopicPartition, Sequence[GapRange]]
) -> dict[TopicPartition, _Count]:
    until = work.effects.clock() + int(COUNT_SECONDS * 1000)
    counts = {place: _Count([each for each in some if each[0] < each[1]]) for place, some in ranges.items()}
    moved = True
    while (rest := {place: count.left for place, count in counts.items() if count.left}) and moved:
        work.keep()
        looks = log.look(rest, committed=True, deadline=work.within())
        further = sum(counts[place].take(look) for place, look in looks.items())
        moved = further > 0 and work.effects.clock() < until
    return counts
