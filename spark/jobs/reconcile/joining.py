"""The join of all lanes by tasks, one for each slice, and the sums of what the run did, by one for each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark import SparkContext

from mirrorless.journal.entry import Slice
from mirrorless.reconcile.findings import JoinTask, LaneJoined, LaneTally, LaneToJoin, TallyTask
from mirrorless.settings import FlowSettings
from spark.jobs.lane_tasks import run_lanes
from spark.jobs.reconcile.summary import LaneUnderWay
from spark.jobs.reconcile.tasks import join_lanes, tally_lane


def join_all(context: SparkContext, settings: FlowSettings, run_id: str, lanes: Sequence[LaneUnderWay]) -> None:
    """Join the copies and orphans of lanes to their chains; positions and errors are noted in them.

    Lanes of one slice share a journal, in which two tasks would take each other's places.
    """
    slices: dict[Slice, list[LaneUnderWay]] = {}
    for each in lanes:
        slices.setdefault(Slice.of(each.lane.forward), []).append(each)
    tasks = [JoinTask(settings=settings, run_id=run_id, lanes=tuple(map(_to_join, some))) for some in slices.values()]
    found = run_lanes(context, join_lanes, [msgspec.json.encode(task) for task in tasks])
    for some, text in zip(slices.values(), found, strict=True):
        for each, result in zip(some, msgspec.json.decode(text, type=list[LaneJoined]), strict=True):
            each.position, each.error = result.position, result.error


def tallies(
    context: SparkContext, settings: FlowSettings, run_id: str, lanes: Sequence[LaneUnderWay]
) -> Mapping[int, LaneTally]:
    """What the run did in each lane that was not left alone, over all its attempts; by the lane's place in `lanes`."""
    wanted = {number: each for number, each in enumerate(lanes) if not each.inspection.differs}
    tasks = [
        TallyTask(
            settings=settings,
            run_id=run_id,
            names=each.inspection.names,
            position=each.inspection.position,
            policy=each.policy,
            mapped=not each.error,
        )
        for each in wanted.values()
    ]
    found = run_lanes(context, tally_lane, [msgspec.json.encode(task) for task in tasks])
    return {number: msgspec.json.decode(text, type=LaneTally) for number, text in zip(wanted, found, strict=True)}


def _to_join(each: LaneUnderWay) -> LaneToJoin:
    return LaneToJoin(
        names=each.inspection.names,
        position=each.inspection.position,
        chain_end=each.inspection.chain_end,
        until=each.until,
        orphans=each.orphans,
        policy=each.policy,
    )
