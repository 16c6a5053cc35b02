"""The reconcile job: inspect, copy back, find orphans, join, compare keys, carry out policies, bring back groups.

Each step can be repeated after a crash: copies are in the chains of the back lanes, joined links in the forward chains,
orphans in the loss ledger.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import msgspec
from msgspec.structs import replace

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.clock import deadline_in, now_ms
from mirrorless.flow.naming import OWN_GROUPS
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.ownership import ClaimedOffsets
from mirrorless.jobs.copy_task import CopyTask, OffsetRange
from mirrorless.jobs.request import ReconcileOptions
from mirrorless.jobs.topic_ids import ids_of_run, made_anew
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.past import PastStore
from mirrorless.protocol.positions import ORDERED_MS
from mirrorless.reconcile.conflicts import LaneConflicts, conflict_task, refuse_live_replay
from mirrorless.reconcile.difference import Stretch, united, without
from mirrorless.reconcile.inspect import counts_orphans, left_to_watch, orphans_ahead, still_written
from mirrorless.reconcile.outcome import FailbackForecast, OrphanReader, forecast, readers_of
from mirrorless.reconcile.returning_groups import GroupsBack, ReturningGroup
from mirrorless.reconcile.tasks import (
    InspectTask,
    LaneInspection,
    LaneOrphans,
    OrphanTask,
    back_tasks,
    lane_of,
    orphan_task,
    refuse_one_way,
    to_do,
    withheld,
    withholding,
)
from spark.jobs.context import lanes_at_a_time
from spark.jobs.driver import JobOutcome, JobRun, drive
from spark.jobs.lane_copies import TOGETHER, copy_all
from spark.jobs.leases import HeldLanes, KeptLeases
from spark.jobs.reconcile.tasks import LaneUnderWay, join_all, outcome_of, results_of, tallies
from spark.jobs.reconcile.topics import ReconciledTopics

ReconcileStep = Literal["looked", "copied", "found", "joined", "compared", "carried out", "groups"]
"""The last step of a run."""

ANSWER_SECONDS: Final = 60.0
"""For one request of the driver to a cluster."""


STILL_SECONDS: Final = 10.0
"""Most producers write within that time."""


def reconcile(run: JobRun) -> JobOutcome:
    """Run the job."""
    return Reconciliation(run).act()


@dataclass(slots=True)
class Reconciliation:
    """One run of the job."""

    run: JobRun
    on_step: Callable[[ReconcileStep], None] = lambda _: None
    """Called after each step's effect."""
    settle_ms: int = ORDERED_MS
    """How long a warm forwarder may replicate without having read that its lane is held."""
    still_seconds: float = STILL_SECONDS
    """How long the source's ends are watched."""
    troubles: list[str] = field(default_factory=list)
    _states: DynamoDbLaneStates = field(init=False)
    _chains: DynamoDbChains = field(init=False)
    _ledger: DynamoDbLossLedger = field(init=False)
    _checkpoints: DynamoDbDocuments = field(init=False)
    _topics: ReconciledTopics = field(init=False)
    _ids: dict[str, str] = field(init=False)
    """Of its topics, when the run first met them."""
    _looked_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Wire the stores."""
        flow = self.run.request.flow
        client = dynamodb_client(flow.target.region, flow.tables_role)
        self._states = DynamoDbLaneStates(client, flow.tables.lanes)
        self._chains = DynamoDbChains(client, flow.tables.offset_map, retention_days=flow.offset_map_retention_days)
        self._ledger = DynamoDbLossLedger(client, flow.tables.loss_ledger)
        self._checkpoints = DynamoDbDocuments(client, flow.tables.checkpoints)
        self._topics = ReconciledTopics(self.run.request)

    @property
    def options(self) -> ReconcileOptions:
        """The options of the request."""
        return cast("ReconcileOptions", self.run.request.options)

    def act(self) -> JobOutcome:
        """Do every step.

        Raises:
            LeaseHeld: another job has one of the lanes.
            Retriable: a cluster or a store does not answer.
        """
        refuse_one_way(self.run.request.flow, self.run.request.topics)
        self._ids = ids_of_run(self.run.files, self._topics.ids())
        tasks, left_alone = self._topics.tasks(self._ids, files=self._files, count=self.options.look_only)
        refuse_live_replay(self.options, tasks)
        forward = [task.lane for task in tasks if task.source_partitions is None]
        request = self.run.request
        held = HeldLanes(states=self._states, run_id=request.run_id, settle_ms=self.settle_ms)
        leases = KeptLeases(self._states, holder=request.run_id, seconds=request.lease_seconds, throughout=True)
        with nullcontext() if self.options.look_only else leases.of(forward):
            held_at, look = held.since(forward), None
            watched_since = time.monotonic()
            before = self._topics.source_ends([(each.topic, each.partition) for each in tasks])
            self.run.start_spark()
            if not self.options.look_only:
                self.run.phase = "hold"
                self.troubles += filter(None, [held.hold(forward)])
            lanes = [self._lane(each) for each in [*self._inspect(tasks), *left_alone]]
            nothing_beyond = {task.lane for task in tasks if task.source_partitions is not None}
            lanes = [each for each in lanes if not each.going or each.lane.forward not in nothing_beyond]
            self._leave_made_anew(lanes)
            self.on_step("looked")
            self._leave_live(lanes, before, since=watched_since)
            if self.options.look_only:
                look = self._look(lanes)
                groups: list[ReturningGroup] = []
            else:
                leases.check()
                self._copy_back(lanes)
                self.on_step("copied")
                self._find(lanes)
                self._leave_made_anew(lanes)
                self.on_step("found")
                leases.check()
                self._join(lanes)
                self.on_step("joined")
                leases.check()
                self._compare(lanes)
                self._withhold(lanes)
                self.on_step("compared")
                leases.check()
                self._carry_out(lanes)
                self.on_step("carried out")
                leases.check()
                groups = self._groups(lanes)
                self.on_step("groups")
                held.release(each.lane.forward for each in lanes if each.going and not each.waits)
        done = {} if self.options.look_only else tallies(self.run.context, self._flow, self._run_id, lanes)
        return outcome_of(
            self.run,
            lanes,
            groups,
            tallies=done,
            local=self._topics.local(held_at),
            troubles=self.troubles,
            look=look,
        )

    # On Spark

    def _inspect(self, tasks: Sequence[InspectTask]) -> list[LaneInspection]:
        self.run.phase = "look"
        began = time.monotonic()
        found = results_of(self.run.context, tasks, LaneInspection)
        self._looked_seconds = time.monotonic() - began
        return found

    def _leave_live(self, lanes: Sequence[LaneUnderWay], before: Mapping[TopicPartition, int], *, since: float) -> None:
        """Leave those alone whose source is still written to, unless the operator takes that upon himself.

        Args:
            lanes: all of them.
            before: the source's ends when the run began.
            since: when that was, by the monotonic clock.
        """
        watched = [each for each in lanes if each.going and counts_orphans(each.inspection)]
        if self.options.live_source or not watched:
            return
        self.run.phase = "watch the source"
        inspected = {each.place: each.inspection.source.next for each in watched}
        time.sleep(left_to_watch(inspected, before, seconds=time.monotonic() - since, still=self.still_seconds))
        now = self._topics.source_ends(list(inspected))
        for each in watched:
            if each.place in now and (reason := still_written(each.inspection, now[each.place])):
                each.inspection = replace(each.inspection, differs=reason)

    def _leave_made_anew(self, lanes: Sequence[LaneUnderWay]) -> None:
        """Leave those alone of whose topics one was made anew since the run's first attempt began."""
        now = self._topics.ids()
        for each in lanes:
            if each.going:
                each.error = made_anew(self._topics.places(each.inspection.topic), self._ids, now)

    def _copy_back(self, lanes: Sequence[LaneUnderWay]) -> None:
        self.run.phase = "copy back"
        rounds: list[list[tuple[LaneUnderWay, CopyTask]]] = [[], []]
        for each in lanes:
            if not each.going:
                continue
            late = each.inspection.late
            tasks = back_tasks(
                self._flow, each.lane, late, each.inspection.tail, run_id=self._run_id, files=self._files
            )
            for task in tasks:
                rounds[0 if late and task is tasks[0] else 1].append((each, task))
        for work in rounds:
            self._copy([(each, task) for each, task in work if each.going])

    def _copy(self, work: Sequence[tuple[LaneUnderWay, CopyTask]]) -> None:
        found = copy_all(self.run.context, [task for _, task in work])
        for (each, task), result in zip(work, found, strict=True):
            if result.state != "done":
                each.error = f"{task.lane_topic}-{task.partition}: {result.error}"

    def _find(self, lanes: Sequence[LaneUnderWay]) -> None:
        self.run.phase = "find orphans"
        going = [each for each in lanes if each.going]
        tasks = [
            OrphanTask(
                settings=self._flow,
                lane=each.lane,
                topic_ids=" ".join(self._ids.get(place, "") for place in self._topics.places(each.inspection.topic)),
                files=self._files,
                position=each.inspection.position,
                until=orphans_ahead(each.inspection),
            )
            for each in going
        ]
        for each, answer in zip(going, results_of(self.run.context, tasks, LaneOrphans), strict=True):
            each.error, each.until, each.orphans = answer.error, answer.until, answer.stretches
            if each.orphans and not self.options.live_source:
                each.error = each.error or still_written(each.inspection, each.orphans[-1].next)
            if not self.options.look_only:
                each.remember(self.run.files)

    def _compare(self, lanes: Sequence[LaneUnderWay]) -> None:
        """Set beside each lane's orphans what else was written with their keys."""
        self.run.phase = "compare keys"
        orphans = [
            (each, ranges)
            for each in lanes
            if each.going
            and (ranges := united([*_ranges(each.remembered(self.run.files) or each.orphans), *self._waiting(each)]))
        ]
        ends = self._topics.stable_ends(each.place for each, _ in orphans) if orphans else {}
        tasks = [
            conflict_task(
                self._flow,
                each.inspection,
                ranges,
                self._chains,
                end=ends.get(each.place),
                copied=not self.options.look_only,
                files=self._files,
            )
            for each, ranges in orphans
        ]
        for (each, _), found in zip(orphans, results_of(self.run.context, tasks, LaneConflicts), strict=True):
            each.conflicts, each.error = found, each.error or found.error

    # On the driver

    def _look(self, lanes: Sequence[LaneUnderWay]) -> tuple[FailbackForecast, list[OrphanReader]]:
        """Find what there is to know of a failback without changing anything."""
        self._find(lanes)
        self._compare(lanes)
        self.run.phase = "forecast"
        sizes = [each.inspection.late_bytes + each.inspection.tail_bytes for each in lanes if each.going]
        found = forecast(
            sizes,
            round_trip=self._topics.round_trip(),
            bytes_per_second=sum(sizes) / self._looked_seconds if self._looked_seconds else 0.0,
            at_a_time=TOGETHER * lanes_at_a_time(self.run.context),
        )
        source = KafkaGroups(self._flow.source, flow=self._flow.flow)
        orphans = {each.place: each.orphans for each in lanes if each.orphans}
        names = source.names(deadline_in(ANSWER_SECONDS)) if orphans else []
        wanted = [name for name in names if not name.startswith(OWN_GROUPS)]
        return found, readers_of(source.committed(wanted, deadline_in(ANSWER_SECONDS)) if wanted else {}, orphans)

    def _waiting(self, each: LaneUnderWay) -> tuple[OffsetRange, ...]:
        """The orphans of one lane whose policy is still to be carried out."""
        if each.policy == "report" or self.options.look_only:
            return ()
        beside = lane_of(each.lane, each.policy)
        position = self._chains.heads([beside])[beside].position
        return to_do(each.lane, each.policy, self._ledger.read(each.lane.forward), position=position)

    def _withhold(self, lanes: Sequence[LaneUnderWay]) -> None:
        """Take those orphans out of the replay that are not the newest records of their keys."""
        for each in lanes:
            if not each.going or each.policy != "replay" or not each.inspection.compacts:
                continue
            if self.options.conflicts == "keep-newest":
                waiting = self._waiting(each)
                older = without(waiting, without(waiting, each.conflicts.older))
                losses = self._ledger.read(each.lane.forward)
                for loss in withholding(each.lane, losses, older, at=now_ms()):
                    self._ledger.note(loss)
            each.withheld = sum(
                some.next - some.first for some in withheld(each.lane, self._ledger.read(each.lane.forward))
            )

    def _join(self, lanes: Sequence[LaneUnderWay]) -> None:
        self.run.phase = "join"
        join_all(self.run.context, self._flow, self._run_id, [each for each in lanes if each.going])

    def _carry_out(self, lanes: Sequence[LaneUnderWay]) -> None:
        self.run.phase = "orphans"
        work = []
        for each in lanes:
            if not each.going:
                continue
            ranges = self._waiting(each)
            if ranges and each.policy == "replay" and self._topics.grew(each.inspection):
                each.waits = (
                    "orphans wait to be written again: the target was still written to. Stop its producers, and start "
                    "the reconcile again"
                )
            elif ranges:
                task = orphan_task(self._flow, each.lane, each.policy, ranges, run_id=self._run_id, files=self._files)
                work.append((each, task))
        self._copy(work)

    def _groups(self, lanes: Sequence[LaneUnderWay]) -> list[ReturningGroup]:
        self.run.phase = "groups"
        flow = self._flow
        back = GroupsBack(
            chains=self._chains,
            source=KafkaGroups(flow.source, flow=flow.flow),
            target=KafkaGroups(flow.target, flow=flow.flow),
            include=self.options.groups,
            exclude=self.options.groups_exclude,
            claim=self._claim,
            past=PastStore(documents=self._checkpoints),
        )
        covered = {each.lane.forward: each.inspection.target.next for each in lanes if each.going}
        remote = {
            (each.inspection.remote_topic, each.inspection.partition): each.lane.forward for each in lanes if each.going
        }
        groups, troubles = back.bring(remote, covered, lambda: deadline_in(ANSWER_SECONDS))
        self.troubles += troubles
        return groups

    def _claim(self, claimed: ClaimedOffsets) -> None:
        self._checkpoints.write(self._flow.name, {claimed.key: msgspec.json.encode(claimed)})

    # The request

    def _lane(self, inspection: LaneInspection) -> LaneUnderWay:
        return LaneUnderWay(inspection, inspection.lane(self._flow.name), self.options.policy_of(inspection.topic))

    @property
    def _flow(self) -> FlowSettings:
        return self.run.request.flow

    @property
    def _run_id(self) -> str:
        return self.run.request.run_id

    @property
    def _files(self) -> str:
        return self.run.files.place


def _ranges(stretches: Iterable[Stretch]) -> list[OffsetRange]:
    return [OffsetRange(each.first, each.next) for each in stretches]


if __name__ == "__main__":
    # By the module's own name: workers import functions by name, and `__main__` is another module there.
    from spark.reconcile import reconcile as job

    sys.exit(drive(job))
