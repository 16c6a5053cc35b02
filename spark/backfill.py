"""The backfill job: plan, take the lanes, copy them on Spark, report."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.backfill.checks import BACKFILLED, worst
from mirrorless.backfill.handover import MappingHandover
from mirrorless.backfill.outcome import report_of, totals_of
from mirrorless.backfill.plan import copy_order
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import RUNNING, Stop
from mirrorless.clock import deadline_in, now_ms
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.jobs.copy_task import CopyResult, CopyTask
from mirrorless.jobs.plan import JobPlan, PlannedLane
from mirrorless.jobs.progress import LaneProgress
from mirrorless.jobs.request import PLAN, BackfillOptions, lane_file
from mirrorless.reports.format import visible
from spark.jobs.backfill.archive_survey import surveyor
from spark.jobs.backfill.plan import plan_backfill
from spark.jobs.clients import warm_tables
from spark.jobs.context import lanes_at_a_time
from spark.jobs.driver import JobOutcome, JobRun, drive
from spark.jobs.lane_copies import copy_all, copy_group
from spark.jobs.lane_tasks import TaskAttempt, Work
from spark.jobs.leases import KeptLeases

ANSWER_SECONDS = 15.0
"""For the committed offset of a mapping, when a run ends early."""


def backfill(run: JobRun) -> JobOutcome:
    """Run the job.

    Raises:
        ConfigurationError: a check refuses, or warns without `force`. Nothing was changed.
    """
    options = run.request.options
    if not isinstance(options, BackfillOptions):
        raise ConfigurationError(f"this is a request for {run.request.kind}", where=run.request.run_id)
    run.phase = "plan"
    run.start_spark()
    survey = surveyor(run.context, options.archive) if options.archive is not None else None
    dynamodb = dynamodb_client(run.request.flow.target.region, run.request.flow.tables_role, direct=True)
    plan = plan_backfill(run.request, survey=survey, dynamodb=dynamodb)
    run.files.write(PLAN, msgspec.json.encode(plan))
    _refuse(plan, options)
    held = BackfilledLanes(run, plan, dynamodb)
    try:
        held.take()
        # A mapping may have written until the lanes were taken: the second plan has it.
        plan = plan_backfill(
            run.request, at_a_time=lambda: lanes_at_a_time(run.context), survey=survey, dynamodb=dynamodb
        )
        run.files.write(PLAN, msgspec.json.encode(plan))
        _refuse(plan, options)
        held.begun = True
        began = time.monotonic()
        results = copy_lanes(run, plan, options, backfill_lanes)
        seconds = time.monotonic() - began
        held.finished(lane for lane, result in zip(plan.lanes, results, strict=True) if result.state == "done")
    finally:
        held.let_go()
    run.phase = "report"
    run.write_progress()  # so that the samples of the report reach to the end
    totals = totals_of(results, seconds)
    return JobOutcome(
        clean=all(each.state == "done" for each in results),
        found={
            "totals": totals,
            "plan": msgspec.to_builtins(plan),
            "lanes": msgspec.to_builtins(results),
        },
        report=report_of(plan, results, totals, run.samples, made_at=now_ms()),
    )


def copy_lanes(run: JobRun, plan: JobPlan, options: BackfillOptions, work: Work) -> list[CopyResult]:
    """Do the work of the lanes of a plan, from the `CopyTask`s of a group; the results in the plan's order."""
    lanes = copy_order(plan, now=now_ms())
    tasks = [_task(run, plan, options, lane) for lane in lanes]
    if options.max_mb_per_second:
        cap = options.max_mb_per_second * 1e6
        share = cap / plan.lanes_at_a_time  # of each Spark task, whose lanes share it
        tasks = [msgspec.structs.replace(task, max_bytes_per_second=share, job_bytes_per_second=cap) for task in tasks]
    run.expect(
        {
            lane_file(lane.lane_topic, lane.partition): _waiting(lane, task)
            for lane, task in zip(lanes, tasks, strict=True)
        }
    )
    run.phase = "copy"
    found = copy_all(run.context, tasks, work=work, sizes=[lane.bytes or 0 for lane in lanes])
    answers = {(lane.lane_topic, lane.partition): each for lane, each in zip(lanes, found, strict=True)}
    return [answers[lane.lane_topic, lane.partition] for lane in plan.lanes]


def backfill_lanes(task: bytes, attempt: TaskAttempt) -> bytes:
    """Copy some lanes as `copy_together` does, and join each to its mapping."""
    return copy_group(task, attempt, lambda each: _joining(each) if each.group else None)


def _joining(task: CopyTask) -> MappingHandover:
    settings = task.settings
    dynamodb = warm_tables(settings.target.region, settings.tables_role)
    return MappingHandover(
        groups=KafkaGroups(settings.source, flow=settings.flow),
        states=DynamoDbLaneStates(dynamodb, settings.tables.lanes),
        clock=now_ms,
    )


def _refuse(plan: JobPlan, options: BackfillOptions) -> None:
    if against := plan.against(force=options.force):
        raise ConfigurationError(
            worst(against),
            where=plan.flow,
            hint="resolve that and start again" if plan.refusals else "resolve that, or start again with `force`",
        )


def _task(run: JobRun, plan: JobPlan, options: BackfillOptions, lane: PlannedLane) -> CopyTask:
    return CopyTask(
        settings=run.request.flow,
        lane_topic=lane.lane_topic,
        read_topic=lane.topic,
        write_topic=lane.write_topic,
        partition=lane.partition,
        ranges=(lane.range,),
        run_id=run.request.run_id,
        files=run.files.place,
        holder=run.request.run_id,
        lease_seconds=run.request.lease_seconds,
        archive=options.archive,
        hand_over=plan.hands_over,
        handover_seconds=options.handover_seconds,
        group=lane.group,
    )


def _waiting(lane: PlannedLane, task: CopyTask) -> LaneProgress:
    """The progress of a lane that waits."""
    total = lane.range.next - lane.range.first
    done = min(total, max(0, lane.position - lane.range.first))
    return LaneProgress(lane=str(task.lane), done=done, total=total, position=lane.position, at=now_ms())


class BackfilledLanes:
    """The leases of all lanes, from before the first task until the last one is over, and the stops of a backfill."""

    begun = False
    """Whether records may have been written: before that, every lane is left as it was."""

    def __init__(self, run: JobRun, plan: JobPlan, dynamodb: Any) -> None:
        """Args: dynamodb: a client, see `dynamodb_client`."""
        request, flow = run.request, run.request.flow
        self._states = DynamoDbLaneStates(dynamodb, flow.tables.lanes)
        self._chains = DynamoDbChains(dynamodb, flow.tables.offset_map)
        self._source, self._flow, self._holder = flow.source, flow.flow, request.run_id
        self._leases = KeptLeases(self._states, holder=request.run_id, seconds=request.lease_seconds, throughout=False)
        self._lanes = {Lane(flow.name, lane.lane_topic, lane.partition): lane for lane in plan.lanes}
        self._left: dict[Lane, PlannedLane] = {}
        self._resumed: set[Lane] = set()

    def take(self) -> None:
        """Take every lane, end the stops that an earlier backfill left, and renew the leases.

        Raises:
            LeaseHeld: another job has one of them.
            Retriable: the store does not answer.
        """
        try:
            states = self._leases.take(tuple(self._lanes))
        finally:
            self._left = {lane: self._lanes[lane] for lane in self._leases.taken}
        in_parallel(
            self._resume,
            [lane for lane, state in states.items() if state.stop is not None and state.stop.reason == BACKFILLED],
        )

    def _resume(self, lane: Lane) -> None:
        self._states.resume(lane)
        self._resumed.add(lane)

    def finished(self, lanes: Iterable[PlannedLane]) -> None:
        """Leave out lanes whose leases were ended by their tasks."""
        done = {(each.lane_topic, each.partition) for each in lanes}
        self._left = {lane: each for lane, each in self._left.items() if (lane.topic, lane.partition) not in done}

    def let_go(self) -> None:
        """End the leases that are left.

        An unfinished lane is stopped first, unless its mapping continues at or below the lane's position: the forwarder
        would continue behind the gap. What cannot be let go waits for another run once its lease has ended.
        """
        self._leases.stop()
        try:
            stops = self._stops()
        except MirrorlessError as exc:
            print(visible(f"{len(self._left)} lanes are not let go: {exc}"))
            return

        def let_go(lane: Lane) -> None:
            try:
                if lane in stops:
                    self._states.stop(lane, stops[lane])
                self._leases.let_go(lane)
            except MirrorlessError as exc:
                print(visible(f"{lane} is not let go: {exc}"))

        in_parallel(let_go, self._left)

    def _stops(self) -> dict[Lane, Stop]:
        """The stops of lanes that are let go before they have come to their mapping."""
        states = self._states.read(self._left)
        begun = []
        for lane, planned in self._left.items():
            state = states.get(lane, RUNNING)
            ours = state.lease is not None and state.lease.holder == self._holder
            if ours and state.stop is None and planned.group and (self.begun or lane in self._resumed):
                begun.append(lane)
        if not begun:
            return {}
        groups = sorted({self._left[lane].group for lane in begun if states[lane].waiting is None})
        kafka = KafkaGroups(self._source, flow=self._flow)
        offsets = kafka.committed(groups, deadline_in(ANSWER_SECONDS)) if groups else {}
        found = {}
        for lane, head in self._chains.heads(begun).items():
            planned, mapping = self._left[lane], states[lane].waiting
            if mapping is None:
                committed = offsets.get(planned.group, {}).get((planned.topic, planned.partition))
                mapping = committed.offset if committed is not None else None
            if mapping is None or head.position < mapping:
                detail = f"backfill {self._holder} ended before this lane had come to its mapping"
                found[lane] = Stop(reason=BACKFILLED, upstream_offset=head.position, detail=detail, at=now_ms())
        return found


if __name__ == "__main__":
    # By the module's own name: workers import functions by name, and `__main__` is another module there.
    from spark.backfill import backfill as job

    sys.exit(drive(job))
