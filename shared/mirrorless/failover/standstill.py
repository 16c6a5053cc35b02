"""A cluster that stands still, drained: the two fences, the wait for its ends, and for every record to be on the other.

Producers are kept from the source by ACLs, and the flow by one item. Ends stand still where nobody writes and no
transaction is open; the same for the source and for the target.

Between two clusters that replicate to each other under the same names, neither stands still while applications write to
the other one, and no job copies anything back: the flow in the other direction does. So the source stands still once no
record of its own has come for a while, and a failback waits for both flows and brings the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head, Stop
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError
from mirrorless.failover.groups import end_waits, one_round
from mirrorless.failover.state import still_seconds
from mirrorless.failover.work import Done, FailoverSide, FailoverWork, Unfinished
from mirrorless.groups.checkpoints import GroupCheckpoints
from mirrorless.ports.kafka import LogEnds, TopicPartition
from mirrorless.ports.stores import Chains, links_after
from mirrorless.reports.format import numbered
from mirrorless.topics.acls import Acl, to_create, to_delete

PRODUCERS_SECONDS: Final = 600.0
"""Until the step gives up on the producers."""

READY_SECONDS: Final = 180.0
"""Until groups that are not ready are left, and named."""

LOOK_SECONDS: Final = 20.0
"""For a look at what waits on the target."""

TAIL: Final = 500
"""Offsets behind a lane's position that are read for that, at most."""

_Ends = Mapping[str, list[int]]


def produce_nothing(work: FailoverWork) -> Done:
    """Wait until the source has had no new record of its own for long enough; copies may come.

    Raises:
        Unfinished: its producers still write.
        Retriable: a cluster or the store does not answer.
    """
    effects, flow = work.effects, work.flow
    usual = still_seconds(work.document.order, back=False)
    wanted = work.still_seconds if work.still_seconds is not None else float(usual)
    began = effects.clock()
    while True:
        ends = _source_ends(work)
        drain_to(work, ends)
        before = effects.chains.heads(work.lanes(but_stopped=True))
        until = effects.clock() + int(wanted * 1000)
        while effects.clock() < until:
            work.wait_for(f"{flow.source} to have no new record of its own")
            work.pause()
        ends = _source_ends(work)
        drain_to(work, ends)
        writing = sorted(str(lane) for lane, head in before.items() if _copied_since(effects.chains, lane, head))
        if not writing:
            return Done(
                said=f"{flow.source} has had no record of its own for {wanted:g} s",
                facts={"ends": ends},
            )
        some = ", ".join(writing[:NAMED])
        if effects.clock() > began + int(PRODUCERS_SECONDS * 1000):
            raise Unfinished(
                f"applications still write to {flow.source}: {some}",
                where=str(flow),
                hint="stop them; then run the same command again",
            )
        work.wait_for(f"the producers of {flow.source} to be stopped: {some}")


def catch_up(work: FailoverWork) -> Done:
    """Wait until each cluster has what the other one has now.

    Raises:
        Unfinished: one of the flows does not move.
        Retriable: a cluster or a store does not answer.
    """
    flow = work.flow
    drain_to(work, _source_ends(work))
    counterpart = _counterpart(work)
    waiting = {
        Lane(flow.turned, topic, partition): end
        for topic, ends in _ends_of(work, work.effects.target.ends).items()
        for partition, end in enumerate(ends)
    }
    until = work.effects.clock() + int(READY_SECONDS * 1000)
    while waiting:
        heads = counterpart.heads(waiting)
        behind = {lane: end for lane, end in waiting.items() if heads[lane].position < end or heads[lane].in_doubt}
        # Behind the last record there may be markers, and no record that would move a lane past them.
        settled = {
            lane: (heads[lane].position, end)
            for lane, end in behind.items()
            if not heads[lane].in_doubt and end - heads[lane].position <= TAIL
        }
        empty = _nothing_visible(work, settled)
        waiting = {lane: end for lane, end in behind.items() if lane not in empty}
        if not waiting:
            break
        some = ", ".join(sorted(map(str, waiting))[:NAMED])
        if work.effects.clock() > until:
            raise Unfinished(
                f"records of {flow.target} wait: {some}",
                where=str(flow),
                hint=f"see `mirrorless status '{flow.turned}'`; then run the same command again",
            )
        work.wait_for(f"{flow.turned}: {some}")
        work.pause()
    return Done(said=f"{flow.source} and {flow.target} have each other's records")


def _nothing_visible(work: FailoverWork, ranges: Mapping[Lane, tuple[int, int]]) -> set[Lane]:
    """The lanes of the other flow with no visible record of the target in their range."""
    places = {(lane.topic, lane.partition): lane for lane in ranges}
    if not places:
        return set()
    wanted = {place: ranges[lane] for place, lane in places.items()}
    found = work.effects.target.records.ranges(wanted, work.within(LOOK_SECONDS))
    return {places[place] for place, records in found if not records}


def bring_back_groups(work: FailoverWork) -> Done:
    """Bring the groups that the failover moved to where they go on on the source. Those that cannot are named.

    Raises:
        Retriable: a cluster or a store does not answer.
    """
    effects, began = work.effects, work.effects.clock()
    moved = _moved(work)
    end_waits(work, "reverse")
    while True:
        report = one_round(work, back=True)
        stored = effects.checkpoints.read(work.flow, "reverse/").values()
        found = {each.group: each for text in stored for each in [msgspec.json.decode(text, type=GroupCheckpoints)]}
        waiting = [name for name in moved if name in found and not _is_back(found[name])]
        if not moved or (report is not None and not waiting):
            break
        if effects.clock() > began + int(READY_SECONDS * 1000):
            break
        work.wait_for(f"groups {', '.join(waiting[:NAMED]) or 'to be read'}")
        work.pause()
    groups = [_fate(name, found.get(name)) for name in moved]
    back = sum(each["readiness"] == "ready" for each in groups)
    return Done(
        said=f"go on on {work.flow.source}: {numbered(back, 'group')}"
        + (f"; not: {len(groups) - back:,}" if back < len(groups) else ""),
        facts={"report": {"groups": groups}},
        commands=tuple(
            f"group {each['group']} on {work.flow.source}" for each in groups if each["readiness"] == "ready"
        ),
    )


def _fate(name: str, found: GroupCheckpoints | None) -> dict[str, Any]:
    """What became of a group; one that has not read on the target has nothing to be carried back."""
    if found is None:
        return {"group": name, "readiness": "ready", "reread": 0}
    return {"group": name, "readiness": found.readiness, "reread": found.reread}


def _is_back(group: GroupCheckpoints) -> bool:
    return group.readiness not in {"behind", "ahead_of_replication", "ready"} or (
        group.readiness == "ready" and group.by == "group"
    )


def _moved(work: FailoverWork) -> list[str]:
    found = [each for each in work.document.steps if each.step == "groups"]
    groups = found[0].facts.get("groups", []) if found else []
    return sorted(each["group"] for each in groups if each["fate"] == "moved")


def _counterpart(work: FailoverWork) -> Chains:
    found = work.effects.counterpart
    if found is None:
        raise ConfigurationError(f"there is no flow {work.flow.turned} with the same names", where=str(work.flow))
    return found


def _source_ends(work: FailoverWork) -> _Ends:
    return _ends_of(work, work.effects.source.ends)


def _ends_of(work: FailoverWork, ends_of: Any) -> _Ends:
    """The stable ends of the flow's topics, whose names are those of both clusters."""
    places = [(topic, partition) for topic, count in work.topics.items() for partition in range(count)]
    ends = ends_of(places, work.within())
    return {
        topic: [ends.get((topic, partition), (0, 0, 0))[1] for partition in range(count)]
        for topic, count in work.topics.items()
    }


def _copied_since(chains: Chains, lane: Lane, head: Head) -> bool:
    """Whether a lane has copied a record behind a head."""
    links = links_after(chains, lane, head.generation, head.position - 1)
    return any(isinstance(link, Run) and link.spans for link in links)


STUCK_SECONDS: Final = 180.0
"""Without any progress, until the step gives up: a cold function starts within seconds, a poller within minutes."""


def drain(work: FailoverWork) -> Done:
    """Wait until each chain has passed the source's last record. Behind it there may be markers of transactions.

    Raises:
        Unfinished: nothing moves any more.
        Retriable: a cluster or the store does not answer.
    """
    lift_for_drain(work)
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
        drained = _without_records(work, resting, waiting)
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


def _without_records(work: FailoverWork, lanes: Mapping[Lane, Head], ends: Mapping[Lane, int]) -> set[Lane]:
    """Those of some lanes with no visible record between position and end."""
    if not lanes:
        return set()
    ranges = {(lane.topic, lane.partition): [(head.position, ends[lane])] for lane, head in lanes.items()}
    seen = work.effects.source.looks.look(ranges, committed=True, deadline=work.within())
    found = {lane: seen.get((lane.topic, lane.partition)) for lane in lanes}
    return {lane for lane, look in found.items() if look is not None and look.until >= ends[lane] and not look.visible}


AclChange = Callable[[Collection[Acl], Deadline], Mapping[Acl, str]]


def fence_producers(work: FailoverWork) -> Done:
    """Deny writes to the flow's topics on the source; with `--fence wait`, that is the operator's part.

    Raises:
        Unfinished: the source refused a part of it.
        Retriable: the source does not answer.
    """
    source, effects = work.flow.source, work.effects
    if work.document.order.fencing == "wait":
        work.say(f"stop the producers of {', '.join(sorted(work.topics))} on {source} now")
        return Done(said=f"producers of {source} are stopped by the operator")
    there = effects.source.acls.read(work.within()) or frozenset()
    marks, denies = to_create(work.topics, there)
    _change(work, effects.source.acls.create, marks)
    _change(work, effects.source.acls.create, denies)
    return Done(
        said=f"{source} denies writes to {numbered(len(work.topics), 'topic')}; super users are not bound by that",
        facts={"bindings": len(marks | denies)},
        commands=tuple(f"created on {source}: {acl}" for acl in sorted(denies)),
    )


def lift_producers(work: FailoverWork) -> Done:
    """Delete those ACLs. A DENY that was there before stays.

    Raises: as `fence_producers`.
    """
    source, effects = work.flow.source, work.effects
    there = effects.source.acls.read(work.within())
    denies, marks = to_delete(work.topics, there or ())
    _change(work, effects.source.acls.delete, denies)
    _change(work, effects.source.acls.delete, marks)
    return Done(
        said=f"{source} takes writes to {numbered(len(denies), 'topic')} again"
        if denies
        else "no topic was fenced by ACLs",
        commands=tuple(f"deleted on {source}: {acl}" for acl in sorted(denies)),
    )


def _change(work: FailoverWork, change: AclChange, acls: frozenset[Acl]) -> None:
    work.check_acls(work.flow.source, change(acls, work.within()) if acls else {})


def fence_flow(work: FailoverWork) -> Done:
    """Stop every lane of the flow, present and future. Warm functions read it within a minute.

    Raises:
        Retriable: the store does not answer.
    """
    effects, detail = work.effects, _detail(work)
    known = effects.fences.fenced(work.flow)
    if known is None or known.detail != detail:
        known = Stop(reason="held", upstream_offset=0, detail=detail, at=effects.clock())
        effects.fences.fence(work.flow, known)
    if not known.by_store and effects.fences.fenced(work.flow) == known and (now := effects.fences.store_now()):
        # Once it stands: a job that must know that every function has read it does not wait for longer than it must.
        effects.fences.fence(work.flow, replace(known, at=now, by_store=True))
    return Done(said="nothing more is replicated", commands=(f"fenced {work.flow}, by one item",))


def lift_for_drain(work: FailoverWork) -> None:
    """End a fence of this failover, whose result counts no more: what came late is replicated before the next one.

    Raises:
        Retriable: the store does not answer.
    """
    known = work.effects.fences.fenced(work.flow)
    if known is not None and known.detail == _detail(work):
        work.effects.fences.lift(work.flow)


def _detail(work: FailoverWork) -> str:
    return f"{work.document.run}: `mirrorless failback '{work.flow}' --execute` lifts this"


def lift_flow(work: FailoverWork) -> Done:
    """End the fence. Lanes that the reconcile could not finish have a stop of their own.

    Raises:
        Retriable: the store does not answer.
    """
    work.effects.fences.lift(work.flow)
    return Done(said="the flow replicates again", commands=(f"lifted the fence of {work.flow}",))


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
