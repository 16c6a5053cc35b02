"""The steps of a failover between two clusters that replicate to each other under the same names.

Neither cluster stands still while applications write to the other one, and no job copies anything back: the flow in the
other direction does. So the source stands still once no record of its own has come for a while, and a failback waits
for both flows and brings the groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mirrorless.errors import ConfigurationError
from mirrorless.failover.drain import drain_to
from mirrorless.failover.groups import end_waits, one_round
from mirrorless.failover.plan import still_seconds
from mirrorless.failover.work import Done, FailoverWork, Unfinished
from mirrorless.groups.checkpoints import GroupCheckpoints
from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.ports.stores import Chains
from mirrorless.reports.format import numbered
from mirrorless.run import Run

LIMIT_SECONDS: Final = 600.0
"""Until the step gives up on the producers."""

READY_SECONDS: Final = 180.0
"""Until groups that are not ready are left, and named."""

LOOK_SECONDS: Final = 20.0
"""For a look at what waits on the target."""

TAIL: Final = 500
"""Offsets behind a lane's position that are read for that, at most."""

PAGE: Final = 500
NAMED: Final = 3

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
        if effects.clock() > began + int(LIMIT_SECONDS * 1000):
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
    found = work.effects.target_records.ranges(wanted, work.within(LOOK_SECONDS))
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
        report = one_round(work, effects.rounds_back)
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
    at = head.position - 1
    while links := chains.after(lane, head.generation, at, limit=PAGE):
        if any(isinstance(link, Run) and link.spans for link in links):
            return True
        at = links[-1].position
    return False
