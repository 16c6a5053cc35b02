"""A cluster that stands still, drained: producers are fenced, its ends and every record waited for, the flow stopped.

Producers are kept from the source by ACLs, and the flow is stopped by one item. Ends stand still where nobody writes
and no transaction is open; the same for the source and for the target.

Between two clusters that replicate to each other under the same names, neither stands still while applications write to
the other one, and no job copies anything back: the flow in the other direction does. So the source stands still once no
record of its own has come for a while, and a failback waits for both flows and brings the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head, Stop
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError, few
from mirrorless.failover.groups import READY_SECONDS, checkpoints_of, end_waits, one_round
from mirrorless.failover.state import still_seconds
from mirrorless.failover.work import Done, FailoverSide, FailoverWork, Unfinished
from mirrorless.groups.checkpoints import GroupCheckpoints
from mirrorless.lanes.gaps import LogLooks
from mirrorless.ports.kafka import LogEnds, TopicPartition
from mirrorless.ports.stores import Chains, links_after
from mirrorless.reports.format import numbered
from mirrorless.topics.acls import Acl, to_create, to_delete

PRODUCERS_SECONDS: Final = 600.0
"""Until the step gives up on the producers."""


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
        drain_to(work, _ends(work, effects.source))
        before = effects.chains.heads(work.lanes(but_stopped=True))
        until = effects.clock() + int(wanted * 1000)
        while effects.clock() < until:
            work.wait_for(f"{flow.source} to have no new record of its own")
            work.pause()
        ends = _ends(work, effects.source)
        drain_to(work, ends)
        writing = sorted(str(lane) for lane, head in before.items() if _copied_since(effects.chains, lane, head))
        if not writing:
            return Done(said=f"{flow.source} has had no record of its own for {wanted:g} s", facts={"ends": ends})
        some = few(writing)
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
    flow, counterpart = work.flow, work.effects.counterpart
    if counterpart is None:
        raise ConfigurationError(f"there is no flow {flow.turned} with the same names", where=str(flow))
    drain_to(work, _ends(work, work.effects.source))
    back = {
        Lane(flow.turned, topic, partition): end
        for topic, ends in _ends(work, work.effects.target).items()
        for partition, end in enumerate(ends)
    }
    _pass(work, back, counterpart, work.effects.target.looks)
    return Done(said=f"{flow.source} and {flow.target} have each other's records")


def bring_back_groups(work: FailoverWork) -> Done:
    """Bring the groups that the failover moved to where they go on on the source. Those that cannot are named.

    Raises:
        Retriable: a cluster or a store does not answer.
    """
    moved = sorted(each["group"] for each in work.document.facts("groups").get("groups", ()) if each["fate"] == "moved")
    found = dict[str, GroupCheckpoints]()
    end_waits(work, "reverse")
    for late in work.tries(READY_SECONDS):
        report = one_round(work, back=True)
        found = {each.group: each for each in checkpoints_of(work, "reverse")}
        waiting = [name for name in moved if name in found and not _is_back(found[name])]
        if late or not moved or (report is not None and not waiting):
            break
        work.wait_for(f"groups {few(waiting) or 'to be read'}")
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


def _ends(work: FailoverWork, side: FailoverSide) -> dict[str, list[int]]:
    """The stable ends of the flow's topics on one of its clusters."""
    names = _names(work, side)
    return _by_topic(work, names, side.ends(_places(work, names), work.within()))


def _names(work: FailoverWork, side: FailoverSide) -> dict[str, str]:
    """The flow's topics, as they are called on one of its clusters."""
    remote = side is work.effects.target
    return {topic: work.effects.remote_topic(topic) if remote else topic for topic in work.topics}


def _places(work: FailoverWork, names: Mapping[str, str]) -> list[TopicPartition]:
    return [(names[topic], partition) for topic, count in work.topics.items() for partition in range(count)]


def _by_topic(
    work: FailoverWork, names: Mapping[str, str], ends: Mapping[TopicPartition, LogEnds]
) -> dict[str, list[int]]:
    """Stable ends by the source's topic. Args: names: of the topics where the ends are."""
    return {
        topic: [ends.get((names[topic], partition), (0, 0, 0))[1] for partition in range(count)]
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
    wanted = {lane: ends[lane.topic][lane.partition] for lane in work.lanes(but_stopped=True)}
    _pass(work, wanted, work.effects.chains, work.effects.source.looks)
    return len(wanted)


def _pass(work: FailoverWork, wanted: Mapping[Lane, int], chains: Chains, log: LogLooks) -> None:
    """Wait until the chains of a flow have passed these offsets of the log that it reads. Raises: as `drain`."""
    waiting, before, moved_at = dict(wanted), dict[Lane, int](), work.effects.clock()
    while waiting:
        heads = chains.heads(waiting)
        behind = {lane: head for lane, head in heads.items() if head.in_doubt or head.position < waiting[lane]}
        # A lane that has not moved since the last look may have nothing but markers before it.
        resting = {
            lane: head for lane, head in behind.items() if not head.in_doubt and before.get(lane) == head.position
        }
        drained = _without_records(work, log, resting, waiting)
        positions = {lane: head.position for lane, head in heads.items()}
        if any(before.get(lane) != position for lane, position in positions.items()):
            moved_at = work.effects.clock()
        before, waiting = positions, {lane: waiting[lane] for lane in behind if lane not in drained}
        if not waiting:
            return
        flow, some = next(iter(waiting)).flow, few(map(str, sorted(waiting)))
        if work.effects.clock() > moved_at + int(STUCK_SECONDS * 1000):
            raise Unfinished(
                f"records wait on {flow.source} and nothing moves: {some}",
                where=str(work.flow),
                hint=f"see `mirrorless status '{flow}'`; then run the same command again",
            )
        work.wait_for(f"{len(waiting)} of {len(wanted)} partitions to be replicated: {some}")
        work.pause()


def _without_records(
    work: FailoverWork, log: LogLooks, lanes: Mapping[Lane, Head], ends: Mapping[Lane, int]
) -> set[Lane]:
    """Those of some lanes with no visible record between position and end."""
    if not lanes:
        return set()
    ranges = {(lane.topic, lane.partition): [(head.position, ends[lane])] for lane, head in lanes.items()}
    seen = log.look(ranges, committed=True, deadline=work.within())
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


def stop_flow(work: FailoverWork) -> Done:
    """Stop every lane of the flow, present and future. Warm functions read it within a minute.

    Raises:
        Retriable: the store does not answer.
    """
    effects, detail = work.effects, _detail(work)
    known = effects.flow_stops.flow_stop(work.flow)
    if known is None or known.detail != detail:
        known = Stop(reason="held", upstream_offset=0, detail=detail, at=effects.clock())
        effects.flow_stops.stop_flow(work.flow, known)
    stands = effects.flow_stops.flow_stop(work.flow) == known
    if not known.by_store and stands and (now := effects.flow_stops.store_now()):
        # Once it stands: a job that must know that every function has read it does not wait for longer than it must.
        effects.flow_stops.stop_flow(work.flow, replace(known, at=now, by_store=True))
    return Done(said="nothing more is replicated", commands=(f"stopped {work.flow}, by one item",))


def lift_for_drain(work: FailoverWork) -> None:
    """End the stop by this failover, whose result counts no more: what came late is replicated before the next one.

    Raises:
        Retriable: the store does not answer.
    """
    known = work.effects.flow_stops.flow_stop(work.flow)
    if known is not None and known.detail == _detail(work):
        work.effects.flow_stops.resume_flow(work.flow)


def _detail(work: FailoverWork) -> str:
    return f"{work.document.run}: `mirrorless failback '{work.flow}' --execute` lifts this"


def resume_flow(work: FailoverWork) -> Done:
    """Let the flow go on. Lanes that the reconcile could not finish have a stop of their own.

    Raises:
        Retriable: the store does not answer.
    """
    work.effects.flow_stops.resume_flow(work.flow)
    return Done(said="the flow replicates again", commands=(f"resumed {work.flow}",))


LIMIT_SECONDS: Final = 600.0
"""Until a step gives up: an open transaction may take 15 minutes to time out, and the operator sees which."""


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
    names = _names(work, side)
    usual = still_seconds(work.document.order, back=back)
    wanted = work.still_seconds if work.still_seconds is not None else float(usual)
    standing = _wait(work, side, alias, _places(work, names), wanted)
    return Done(
        said=f"no end on {alias} has moved for {wanted:g} s, and no transaction is open",
        facts={"ends": _by_topic(work, names, standing.ends), "at": effects.clock()},
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
    return few(f"{topic}-{partition}" for topic, partition in sorted(standing.moved))
