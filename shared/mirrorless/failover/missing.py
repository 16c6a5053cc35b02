"""What one cluster has and the other has not: what came late before the last look, and what a lost source leaves.

The ends that stood still are those of a moment. A producer may be silent for longer than that and write again, and one
goes on while a command that was cut off waits to be run again. What the look finds is replicated too, while nobody has
begun on the other side; what comes for ever is named, with counts. Of a lost source, runs in doubt are settled, and the
ends are those that a round has last stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Run
from mirrorless.errors import InDoubt
from mirrorless.failover.refusals import replicated
from mirrorless.failover.work import Done, FailoverWork, Unfinished
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.lanes.gaps import GapRange, LogLooks, Look
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.stores import links_after
from mirrorless.protocol.recovery import settle_doubts, unsettled_stop
from mirrorless.reconcile.difference import apart
from mirrorless.reconcile.tasks import ReconciledLane
from mirrorless.reports.format import moment, numbered
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.topic_state import UNKNOWN, StoredTopics, TopicEnds

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


DOUBT_SECONDS = 120.0
"""Until the step gives up: Kafka ends an abandoned transaction after the flow's own timeout."""

REFRESH = "task/topics"
"""The report of the task that reads the source's ends, each round: an end that is not written anew is as it was."""


def settle(work: FailoverWork) -> Done:
    """Settle every run in doubt: its writer is fenced, and the target shows whether it was committed.

    Raises:
        Unfinished: a transaction hides the answer for too long.
        Retriable: the target or the store does not answer.
    """
    effects, until = work.effects, work.effects.clock() + int(DOUBT_SECONDS * 1000)
    settled, broken = set[Lane](), dict[Lane, str]()
    while True:
        heads = effects.chains.heads(work.lanes())
        doubtful = [
            head.run for lane, head in heads.items() if head.run is not None and head.in_doubt and lane not in broken
        ]
        if not doubtful:
            break
        try:
            found = settle_doubts(
                doubtful,
                effects.remote_topic,
                chains=effects.chains,
                target=effects.replication,
                deadline=work.within(),
            )
        except InDoubt as exc:
            if effects.clock() > until:
                raise Unfinished(
                    f"a run stays in doubt: {exc.what}", where=exc.where, hint="run the same command again"
                ) from exc
            work.wait_for(f"a transaction that hides whether a run was committed: {exc.where}")
            work.pause()
            continue
        for run in doubtful:
            if run.lane in found:
                effects.states.stop(run.lane, unsettled_stop(run, found[run.lane], now=effects.clock()))
        broken |= {lane: str(why) for lane, why in found.items()}
        settled |= {run.lane for run in doubtful} - broken.keys()
    said = f"{len(settled)} runs in doubt were settled" if settled else "no run was in doubt"
    return Done(
        said=said + (f"; {len(broken)} cannot be" if broken else ""),
        facts={"settled": sorted(map(str, settled)), "broken": {str(lane): why for lane, why in broken.items()}},
    )


def hold_up(work: FailoverWork) -> Done:
    """State what the target holds of each lane, and the source's ends as a round has last stored them.

    A drill reads the source's ends now, and counts as if the source had been lost at the moment of the reading.

    Raises:
        Retriable: a store does not answer, or the source of a drill.
    """
    effects, lanes = work.effects, work.lanes()
    heads = effects.chains.heads(lanes)
    now = effects.clock()
    if work.document.order.mode == "drill":
        ends, seen_at = _ends_now(work, heads), now
    else:
        ends = _ends_seen(work, heads)
        report = effects.documents.read(work.flow, REFRESH).get(REFRESH)
        refresh = None if report is None else msgspec.json.decode(report, type=TaskReport)
        seen_at = 0 if refresh is None or not refresh.ok_at else refresh.ok_at - refresh.ok_ms
    broken = set(work.document.facts("settle").get("broken", ()))
    found = holdings_of(
        heads,
        ends,
        seen_at=seen_at,
        now=now,
        broken=[lane for lane in lanes if str(lane) in broken],
    )
    point = found.recovery_point_seconds
    if not seen_at:
        return Done(said="the source's ends were never seen: what is missing is not known", facts=found.facts())
    some = "nothing is" if not found.missing else f"{numbered(found.missing, 'upstream offset')} are"
    rest = (
        "" if work.document.order.mode == "drill" else f"; what was acknowledged after {moment(seen_at)} is not known"
    )
    return Done(
        said=f"{some} known to be missing{rest}; recovery point: "
        + ("not known" if point is None else f"{point:,.1f} s at most"),
        facts=found.facts(),
    )


def _ends_seen(work: FailoverWork, heads: Mapping[Lane, Head]) -> TopicEnds:
    """The source's ends as stored. A topic that was gone before has none, and was replicated whole."""
    stored = StoredTopics.of(work.effects.documents.read(work.flow, "topic"))
    gone = {
        topic: count for topic, count in work.topics.items() if topic not in stored.ends and _is_gone(stored, topic)
    }
    return stored.ends | {
        topic: [heads[Lane(work.flow, topic, partition)].position for partition in range(count)]
        for topic, count in gone.items()
    }


def _is_gone(stored: StoredTopics, topic: str) -> bool:
    return topic in stored.topics and stored.topics[topic].gone_at is not None


def _ends_now(work: FailoverWork, heads: Mapping[Lane, Head]) -> TopicEnds:
    """The source's ends. A lane before which there are only markers has all records, and ends at its position."""
    effects, places = work.effects, work.lanes()
    seen = effects.source.ends(list(places.values()), work.within())
    ends = {lane: seen[place][1] for lane, place in places.items() if place in seen}
    behind = {places[lane]: [(heads[lane].position, end)] for lane, end in ends.items() if heads[lane].position < end}
    looks = effects.source.looks.look(behind, committed=True, deadline=work.within()) if behind else {}
    for lane, place in places.items():
        if place in looks and looks[place].until >= ends[lane] and not looks[place].visible:
            ends[lane] = heads[lane].position
    return {
        topic: [ends.get(Lane(work.flow, topic, partition), UNKNOWN) for partition in range(count)]
        for topic, count in work.topics.items()
    }


class LaneHolding(msgspec.Struct, frozen=True, kw_only=True):
    """One partition on the target, as its chain has it."""

    topic: str
    partition: int
    position: int
    """The first upstream offset that was not replicated."""
    copied_at: int = 0
    """The timestamp of the newest replicated record, ms since the epoch; 0 where there is none. Producers set it."""
    written_at: int = 0
    """When it was replicated, by the replication's own clock, ms since the epoch; 0 where nothing was."""
    seen_end: int | None = None
    """The source's end as last seen; None where no round has seen it."""
    in_doubt: bool = False
    """Whether a run of it could not be settled."""

    @property
    def missing(self) -> int:
        """Upstream offsets that are known to be missing: records, and markers between them."""
        return max(0, (self.seen_end or 0) - self.position)

    def complete_until(self, seen_at: int) -> int | None:
        """The moment up to which all that the source had acknowledged is here, ms since the epoch; None if not known.

        With nothing missing that is when the ends were seen. Otherwise it is when the newest copy was made; or when its
        record was written, if that was before. A record's time that is later than its copy is worth nothing: then a
        copy that was made after the end was seen shows only that the lane lags.
        """
        if self.seen_end is None:
            return None
        if not self.missing:
            return seen_at
        if not self.written_at or self.in_doubt:
            return None
        if 0 < self.copied_at <= self.written_at:
            return self.copied_at
        return self.written_at if self.written_at < seen_at else None


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """All partitions of a flow."""

    lanes: tuple[LaneHolding, ...]
    seen_at: int
    """When the source's ends were last seen, ms since the epoch; 0 for never."""
    lost_at: int
    """When this was written down, ms since the epoch: what was acknowledged between the two is not known."""

    @property
    def missing(self) -> int:
        """Upstream offsets that are known to be missing, of all lanes."""
        return sum(lane.missing for lane in self.lanes)

    @property
    def copied_until(self) -> int | None:
        """The moment up to which every record that the source had acknowledged is on the target; None if not known."""
        if not self.seen_at:
            return None
        found = [lane.complete_until(self.seen_at) for lane in self.lanes]
        known = [until for until in found if until is not None]
        return min([self.seen_at, *known]) if len(known) == len(found) else None

    @property
    def recovery_point_seconds(self) -> float | None:
        """The age of `copied_until`: at most so much is lost; None if that is not known."""
        until = self.copied_until
        return None if until is None else max(0, self.lost_at - until) / 1000

    def facts(self) -> dict[str, Any]:
        """For the report."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts | {name: getattr(self, name) for name in ("missing", "copied_until", "recovery_point_seconds")}


def holdings_of(
    heads: Mapping[Lane, Head],
    ends: Mapping[str, Sequence[int]],
    *,
    seen_at: int,
    now: int,
    broken: Iterable[Lane] = (),
) -> Holdings:
    """The holdings of lanes.

    Args:
        heads: of their chains.
        ends: of the source as last seen, by topic and partition; -1 for not seen.
        seen_at: when, ms since the epoch; 0 for never.
        now: ms since the epoch.
        broken: lanes with a run that cannot be settled.
    """
    unsettled = set(broken)

    def end(lane: Lane) -> int | None:
        known = ends.get(lane.topic, ())
        found = known[lane.partition] if lane.partition < len(known) else -1
        return found if found >= 0 else None

    return Holdings(
        lanes=tuple(
            LaneHolding(
                topic=lane.topic,
                partition=lane.partition,
                position=head.position,
                copied_at=max(0, head.run.newest_timestamp) if head.run is not None else 0,
                written_at=head.run.settled_at if head.run is not None else 0,
                seen_end=end(lane),
                in_doubt=head.in_doubt or lane in unsettled,
            )
            for lane, head in sorted(heads.items(), key=lambda each: each[0])
        ),
        seen_at=seen_at,
        lost_at=now,
    )
