"""What is copied in a reconcile? Back to the source; into a topic of orphans; to the source's own end."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mirrorless.jobs.copy_task import CopyTask, OffsetRange
from mirrorless.jobs.request import Policy
from mirrorless.lane import FlowName
from mirrorless.reconcile.lane_names import ReconciledLane
from mirrorless.settings import FlowSettings


def back_tasks(
    settings: FlowSettings,
    lane: ReconciledLane,
    late: Sequence[OffsetRange],
    tail: OffsetRange | None,
    *,
    run_id: str,
    files: str,
) -> list[CopyTask]:
    """Bring one lane's new records back: first what stands between runs, then what follows them.

    Two tasks, to be done one after the other: a run holds records of one kind, so that either all of its records have a
    place in the forward chain or none has.
    """
    parts = [tuple(late), (tail,) if tail is not None else ()]
    return [
        CopyTask(
            settings=turned_around(settings),
            tables_region=settings.target.region or "",
            lane_topic=lane.back.topic,
            read_topic=lane.remote_topic,
            write_topic=lane.forward.topic,
            partition=lane.forward.partition,
            ranges=part,
            run_id=run_id,
            files=files,
        )
        for part in parts
        if part
    ]


def orphan_task(
    settings: FlowSettings,
    lane: ReconciledLane,
    policy: Policy,
    ranges: Sequence[OffsetRange],
    *,
    run_id: str,
    files: str,
) -> CopyTask:
    """Carry out the policy of one lane's orphans: `quarantine` or `replay`."""
    replay = policy == "replay"
    return CopyTask(
        settings=replace(settings, target=settings.source) if replay else settings,
        tables_region=settings.target.region or "",
        lane_topic=(lane.replay if replay else lane.orphans).topic,
        read_topic=lane.forward.topic,
        write_topic=lane.forward.topic if replay else lane.orphans_topic,
        partition=lane.forward.partition,
        ranges=tuple(ranges),
        run_id=run_id,
        files=files,
    )


def turned_around(settings: FlowSettings) -> FlowSettings:
    """The flow from the target to the source; its tables stay where they are."""
    name = FlowName(settings.name.target, settings.name.source)
    return replace(settings, flow=str(name), source=settings.target, target=settings.source)
