"""The plan of a job that is not started: `--dry-run`. Both clusters and the chains are read, nothing is changed.

Offsets are counted: some of them are markers or gone by compaction, so records are fewer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cli.jobs.local import bring_spark
from cli.output import TableColumns, console, duration, picked, print_json, say, size, table
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.kafka.offsets import Extent, KafkaOffsets
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.cost.prices import EXECUTOR, JOBS_AS_OF, START_SECONDS, Architecture, dollars, executors_for
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.plan import JobPlan, PlannedLane
from mirrorless.jobs.request import BackfillOptions, JobRequest, VerifyOptions
from mirrorless.reports.format import numbered

READ_PER_SECOND = 100_000
"""Records that a core reads and proves, about."""


def plan_of(request: JobRequest, *, cores: int, architecture: Architecture) -> JobPlan:
    """The plan of a request.

    Args:
        request: of the job.
        cores: that workers may have together; each has one lane at a time.
        architecture: of the deployment's application.

    Raises:
        Retriable: a cluster or the store does not answer.
    """
    if request.kind == "backfill":
        bring_spark()
        from spark.jobs.backfill.plan import plan_backfill  # noqa: PLC0415 -- it imports Spark

        return plan_backfill(request, at_a_time=lambda: cores)
    lanes = _lanes(request)
    offsets = sum(each.offsets for each in lanes)
    executors = executors_for(len(lanes), most=max(1, cores // EXECUTOR.cores))
    busy = max(1, min(len(lanes), cores))
    seconds = START_SECONDS + offsets / (READ_PER_SECOND * busy)
    return JobPlan(
        run_id=request.run_id,
        flow=request.flow.flow,
        lanes=tuple(lanes),
        records=offsets,
        bytes=None,
        seconds=seconds,
        dollars=dollars(seconds, executors=executors, architecture=architecture),
        priced=JOBS_AS_OF,
        lanes_at_a_time=busy,
    )


def is_refused(request: JobRequest, plan: JobPlan) -> bool:
    """Whether a start with these options would be refused."""
    return bool(plan.against(force=isinstance(request.options, BackfillOptions) and request.options.force))


def show_plan(request: JobRequest, plan: JobPlan, *, as_json: bool) -> None:
    """Print the plan of a request."""
    if as_json:
        print_json(_as_json(request, plan))
        return
    console().print(table(None, _COLUMNS, plan.lanes))
    for finding in plan.findings:
        mark = {"refuse": "✗", "warn": "!", "info": "·"}[finding.severity]
        say(f"  {mark} {finding.where}: {finding.text}")
    volume = "" if plan.bytes is None else f", about {size(plan.bytes)}"
    say(
        f"{request.kind} of {plan.flow}: {numbered(len(plan.lanes), 'lane')}, at most "
        f"{numbered(plan.records, 'record')}{volume}.",
        f"On EMR Serverless about {duration(int(plan.seconds * 1000))} and ${plan.dollars:.2f} (list prices of "
        f"{plan.priced}).",
        "Nothing was started: this was the plan.",
    )


def _as_json(request: JobRequest, plan: JobPlan) -> dict[str, Any]:
    lanes = [{"lane": _name(each), "read": each.reads} | picked(each, "offsets bytes") for each in plan.lanes]
    return picked(plan, "flow bytes seconds dollars priced") | {
        "kind": request.kind,
        "lanes": lanes,
        "offsets": plan.records,
        "refused": is_refused(request, plan),
        "findings": [picked(each, "severity where text") for each in plan.findings],
    }


def _name(lane: PlannedLane) -> str:
    return f"{lane.topic}-{lane.partition}"


def _lanes(request: JobRequest) -> list[PlannedLane]:
    """The lanes of a `verify` or `reconcile`, with everything that it may read."""
    flow = request.flow
    there = {topic: flow.remote_topic(topic) for topic in request.topics}
    target = _extents(flow.target, flow.flow, there.values())
    source = _extents(flow.source, flow.flow, request.topics)
    lanes = [
        Lane(flow.name, topic, partition)
        for topic in request.topics
        for partition in sorted({p for name, p in (*source, *target) if name in {topic, there[topic]}})
        if partition in request.partitions.get(topic, (partition,))
    ]
    chains = DynamoDbChains(dynamodb_client(flow.target.region, flow.tables_role), flow.tables.offset_map)
    heads = chains.heads(lanes)
    planned = []
    for lane in lanes:
        here, far = source.get((lane.topic, lane.partition)), target.get((there[lane.topic], lane.partition))
        if isinstance(request.options, VerifyOptions):
            read, offsets = _verified(here if request.options.against_source else None, far)
        else:
            read, offsets = _reconciled(here, far, heads[lane])
        planned.append(
            PlannedLane(
                topic=lane.topic,
                partition=lane.partition,
                lane_topic=lane.topic,
                write_topic=there[lane.topic],
                range=OffsetRange(here.start, here.end) if here is not None else OffsetRange(0, 0),
                position=heads[lane].position,
                offsets=offsets,
                bytes=None,
                read=read,
            )
        )
    return planned


def _verified(here: Extent | None, far: Extent | None) -> tuple[str, int]:
    """The whole copy; and the source, where the job compares with it."""
    parts = [(name, each) for name, each in (("downstream", far), ("upstream", here)) if each is not None]
    read = ", ".join(f"{name} {each.start:,} to {each.end:,}" for name, each in parts)
    return read or "nothing: it is not there", sum(each.end - each.start for _, each in parts)


def _reconciled(here: Extent | None, far: Extent | None, head: Head) -> tuple[str, int]:
    """The offsets that no run of the chain covers, on either side."""
    late = max(0, here.end - max(here.start, head.position)) if here is not None else 0
    last = head.run.last_downstream if head.run is not None else None
    new = max(0, far.end - max(far.start, -1 if last is None else last + 1)) if far is not None else 0
    return f"{new:,} new downstream, {late:,} late upstream", new + late


def _extents(cluster: ClusterSettings, flow: str, topics: Iterable[str]) -> dict[tuple[str, int], Extent]:
    offsets = KafkaOffsets(cluster, flow=flow)
    counts = offsets.partitions()
    return offsets.extents((topic, partition) for topic in topics for partition in range(counts.get(topic, 0)))


_COLUMNS: TableColumns[PlannedLane] = (
    ("=lane", _name),
    ("what is read", lambda lane: lane.reads),
    (">records, at most", lambda lane: lane.offsets),
    (">bytes, about", lambda lane: "" if lane.bytes is None else size(lane.bytes)),
)
