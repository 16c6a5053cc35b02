"""Runs in doubt that a lost source leaves, and what the target holds without it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mirrorless.errors import InDoubt
from mirrorless.failover.holdings import holdings_of
from mirrorless.failover.work import Done, FailoverWork, Unfinished
from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.protocol.recovery import settle_doubts
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.topic_state import UNKNOWN, StoredTopics, TopicEnds

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
        ends = StoredTopics.of(effects.documents.read(work.flow, "topic-ends/")).ends
        report = effects.documents.read(work.flow, REFRESH).get(REFRESH)
        seen_at = 0 if report is None else msgspec.json.decode(report, type=TaskReport).ok_at
    broken = set(work.document.facts("settle").get("broken", ()))
    found = holdings_of(
        heads,
        ends,
        seen_at=seen_at,
        now=now,
        broken=[lane for lane in lanes if str(lane) in broken],
    )
    point = found.recovery_point_seconds
    said = (
        f"{found.missing:,} upstream offsets are known to be missing"
        if seen_at
        else "the source's ends were never seen"
    )
    return Done(
        said=said + ("" if point is None else f"; what was acknowledged in the last {point:,.1f} s may be missing"),
        facts=found.facts(),
    )


def _ends_now(work: FailoverWork, heads: Mapping[Lane, Head]) -> TopicEnds:
    """The source's ends. A lane before which there are only markers has all records, and ends at its position."""
    effects, places = work.effects, work.lanes()
    seen = effects.source.ends(list(places.values()), work.within())
    ends = {lane: seen[place][1] for lane, place in places.items() if place in seen}
    behind = {places[lane]: [(heads[lane].position, end)] for lane, end in ends.items() if heads[lane].position < end}
    looks = effects.source_records.look(behind, committed=True, deadline=work.within()) if behind else {}
    for lane, place in places.items():
        if place in looks and looks[place].until >= ends[lane] and not looks[place].visible:
            ends[lane] = heads[lane].position
    return {
        topic: [ends.get(Lane(work.flow, topic, partition), UNKNOWN) for partition in range(count)]
        for topic, count in work.topics.items()
    }
