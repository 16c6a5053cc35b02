"""Alarms of a flow, as plain values: condition, reason, and the operator's first action.

An alarm is made only of what needs a person. What the next round or the next delivery mends by itself stays on the
dashboard. Every alarm has a section of docs/how-to/on-call.md that begins with what to do.

A metric that is written only when something happened is not missed when nothing does (`notBreaching`). What is written
all the time by something that lives is missed (`breaching`): the silence is the alarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from infra.monitoring import metrics
from infra.monitoring.metrics import MINUTE
from mirrorless.flow.counts import WATCHES
from mirrorless.flow.naming import FORWARD, PULL, STANDBY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.deployment import FlowDeployment, Location
    from infra.monitoring.metrics import Metric
    from mirrorless.flow.counts import WatchGraph

RUNBOOK: Final = "docs/how-to/on-call.md"
"""Where the sections stand that alarms name; `runbook.url` may have a copy."""

LANE_STOPPED: Final = "lane-stopped"
"""The alarm that is made where `pull` runs, too: its deliveries meet stops of lanes of their own."""

_FIVE_MINUTES: Final = 300
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One alarm of one flow.

    Attributes:
        id: its name, and the end of its section's anchor: `alarm-<id>`.
        means: one sentence.
        first: what to do first, one sentence.
        metric: what it watches.
        threshold: what a breaching value exceeds; of a silence, what it stays under.
        period: in seconds.
        evaluation_periods: the newest periods that are evaluated.
        datapoints_to_alarm: how many of these must breach; None: all of them.
        silence: whether too little raises it, and a period without a value.
        resolves: whether the end of the alarm is the end of the trouble. A metric of single events ends by itself.
    """

    id: str
    means: str
    first: str
    metric: Metric
    threshold: float = 0
    period: int = MINUTE
    evaluation_periods: int = 1
    datapoints_to_alarm: int | None = None
    silence: bool = False
    resolves: bool = True

    @property
    def anchor(self) -> str:
        """Its section of the runbook."""
        return f"alarm-{self.id}"

    def name(self, flow: FlowDeployment) -> str:
        """Its name in CloudWatch."""
        return f"{flow.flow.deployment}-{flow.id}-{self.id}"

    def description(self, runbook: str | None) -> str:
        """The text of the message. Args: runbook: address of a copy of the runbook."""
        return f"{self.means} First: {self.first} Runbook: {runbook or RUNBOOK}#{self.anchor}"


def alarms(flow: FlowDeployment, *, record_age_seconds: int) -> Sequence[Alarm]:
    """Every alarm of a flow at its home. Their number does not depend on its topics."""
    return [
        *watched(flow, "Lanes", "Runs in doubt", "Loss ledger"),
        *_of_silence(flow),
        *watched(flow, "Tasks", "Groups"),
        *_of_deliveries(flow, record_age_seconds),
    ]


def flow_alarm(flow: FlowDeployment) -> str:
    """The name of the alarm that is raised while any alarm of a flow at its home is."""
    return f"{flow.flow.deployment}-{flow.id}"


def watched(flow: FlowDeployment, *graphs: WatchGraph, part: str = FORWARD) -> list[Alarm]:
    """The alarms of metrics that are above zero. Args: graphs: in which these are lines. part: what emits them."""
    settings, found = flow.flow.settings, []
    for name, watch in WATCHES.items():
        if not watch.alarm or watch.graph not in graphs:
            continue
        if watch.task and not getattr(settings, f"{watch.task}_enabled"):
            continue
        rounds = getattr(settings, f"{watch.task}_interval_seconds") if watch.by_rounds else 0
        found.append(
            Alarm(
                id=watch.alarm,
                means=watch.means.format(flow=flow.name),
                first=watch.first.format(flow=flow.name),
                metric=metrics.of_flow(flow, name, watch.stat, part=part),
                period=minutes(max(watch.period_seconds, rounds)),
                evaluation_periods=watch.periods,
                datapoints_to_alarm=watch.breaching,
                resolves=watch.resolves,
            )
        )
    return found


def _of_silence(flow: FlowDeployment) -> list[Alarm]:
    settings = flow.flow.settings
    if settings.emit_heartbeats_enabled:
        period = minutes(settings.emit_heartbeats_interval_seconds)
        means = f"{flow.name} has written no heartbeat for minutes: its schedule stands, or no cluster answers."
        first = f"mirrorless status '{flow.name}' says what the task met."
        metric = metrics.of_flow(flow, "heartbeats-emitted", "Sum")
    else:
        period = MINUTE
        means = f"No task of {flow.name} has run for minutes: its lanes and groups are not checked."
        first = "look at the schedule and at the log of the function control."
        metric = metrics.of_flow(flow, "task-errors", "SampleCount")
    found = [
        Alarm(
            id="no-heartbeats",
            means=means,
            first=first,
            metric=metric,
            threshold=1,
            period=period,
            evaluation_periods=_periods(period),
            silence=True,
        )
    ]
    if not metrics.heartbeats_scheduled(flow):
        # A heartbeat may wait for its batch, and a mapping that scales stands still for a minute or three.
        found += nothing_arrives(flow, settings.mapping.maximum_batching_window_seconds or 0)
    return found


def nothing_arrives(flow: FlowDeployment, window_seconds: int) -> list[Alarm]:
    """The alarm of heartbeats that do not come through; none where there are none.

    Args:
        flow: the flow.
        window_seconds: how long one may wait for others, or for the next run.
    """
    arrived = metrics.round_trip(flow)
    if arrived is None:
        return []
    period = minutes(flow.flow.settings.emit_heartbeats_interval_seconds + window_seconds)
    evaluation_periods = 15 if period == MINUTE else _periods(period)
    return [
        Alarm(
            id="nothing-arrives",
            means=f"No heartbeat of {flow.flow.source.alias} has come through {flow.name}: the way is blocked.",
            first=f"mirrorless status '{flow.name}', then its mappings.",
            metric=arrived,
            threshold=1,
            period=period,
            evaluation_periods=evaluation_periods,
            silence=True,
        )
    ]


def _of_deliveries(flow: FlowDeployment, record_age_seconds: int) -> list[Alarm]:
    # A retry follows when the failed call has ended: a period must be long enough to have one.
    period = minutes(max(_FIVE_MINUTES, flow.flow.settings.function.timeout_seconds))
    # Where heartbeats come through, an hour: that nothing arrives is another alarm's, after a quarter of an hour.
    periods = 3 if metrics.round_trip(flow) is None else 12
    if flow.pull == flow.home and not flow.flow.settings.schedule.continuous:
        record_age_seconds += flow.flow.settings.schedule.interval_seconds
    return [
        Alarm(
            id="records-late",
            means=f"Records of {flow.name} arrive more than {record_age_seconds} s after they were written.",
            first=f"mirrorless status '{flow.name}': does the lag fall?",
            metric=metrics.of_flow(flow, "record-age-ms-max", "Maximum"),
            threshold=record_age_seconds * 1000,
            evaluation_periods=5,
        ),
        Alarm(
            id="deliveries-fail",
            means=f"Deliveries of {flow.name} have failed again and again for {periods * period // MINUTE} minutes.",
            first="read the last error in the forwarder's log: it names the topic and says what to do.",
            metric=metrics.of_function(flow, "forward", "Errors", "Sum"),
            period=period,
            evaluation_periods=periods,
        ),
    ]


def minutes(seconds: int) -> int:
    """As much, in whole minutes, and a day at most: CloudWatch's periods."""
    return min(-(-seconds // MINUTE) * MINUTE, _DAY)


def _periods(period: int) -> int:
    """How long a silence must last: five minutes, or three times what happens more seldom.

    Evaluation periods times period must stay within a day, or a week for periods of an hour and more.
    (https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricAlarm.html)
    """
    return 5 if period == MINUTE else 3


# Functions that schedules start, `pull` and a standby, each in its own region and account: they are not started, or
# their runs fail. Those at home are lost with it.


MISSED: Final = 3
"""Intervals without a run of some shard, or with a run that failed, after which an operator is called."""


def pull_alarms(flow: FlowDeployment, *, record_age_seconds: int) -> list[Alarm]:
    """Every alarm of a flow that is made beside its function `pull`."""
    schedule = flow.flow.settings.schedule
    interval = MINUTE if schedule.continuous else schedule.interval_seconds
    failing = minutes(max(_FIVE_MINUTES, interval))
    found = [
        Alarm(
            id="pull-silent",
            means=f"A shard of {flow.name} has not been started for {MISSED} intervals: its scheduled topics wait.",
            first="see which of the schedules mirrorless-pull-… is missing, disabled or refused.",
            metric=metrics.of_function(flow, PULL, "Invocations", "Sum"),
            threshold=schedule.shards,
            period=interval,
            evaluation_periods=MISSED,
            silence=True,
        ),
        Alarm(
            id="pull-fails",
            means=f"Runs that read scheduled topics of {flow.name} have failed again and again.",
            first="read the last error in the log of the function pull: it names the lane and says what to do.",
            metric=metrics.of_function(flow, PULL, "Errors", "Sum"),
            period=failing,
            evaluation_periods=MISSED,
        ),
        Alarm(
            id="scheduled-late",
            means=f"Scheduled records of {flow.name} arrive {record_age_seconds} s and more after their run was due.",
            first=f"mirrorless status '{flow.name}': does the lag fall? Else add memory or shards.",
            metric=metrics.of_flow(flow, "record-age-ms-max", "Maximum", part=PULL),
            threshold=(record_age_seconds + (0 if schedule.continuous else interval)) * 1000,
            period=failing,
            evaluation_periods=MISSED,
        ),
    ]
    if metrics.heartbeats_scheduled(flow):
        found += nothing_arrives(flow, 0 if schedule.continuous else interval)
    if flow.pull != flow.home:
        found += [each for each in watched(flow, "Lanes", part=PULL) if each.id == LANE_STOPPED]
    return found


_PERIODS: Final = 15
"""Minutes without a run that ended well: a standby is not in a hurry until it is needed."""


def standby_alarms(flow: FlowDeployment) -> list[Alarm]:
    """Every alarm of a flow that is made beside its standby."""
    return [
        Alarm(
            id="home-silent",
            means=f"{flow.home.region}, the home of {flow.name}, is silent: {flow.state.region} moves its groups.",
            first=f"mirrorless status '{flow.name}', then decide whether the region is lost.",
            metric=metrics.of_flow(flow, "home-silent", "Maximum", part=STANDBY),
            evaluation_periods=3,
            datapoints_to_alarm=1,
        ),
        Alarm(
            id="standby-fails",
            means=f"The standby of {flow.name} fails: its groups would not move if {flow.home.region} were lost.",
            first="read the last error in the log of the function standby.",
            metric=metrics.of_function(flow, STANDBY, "Errors", "Sum"),
            evaluation_periods=_PERIODS,
        ),
        Alarm(
            id="standby-silent",
            means=f"The standby of {flow.name} is not started: its groups would not move without {flow.home.region}.",
            first="see whether the schedule mirrorless-standby-… is missing, disabled or refused.",
            metric=metrics.of_function(flow, STANDBY, "Invocations", "Sum"),
            threshold=1,
            evaluation_periods=_PERIODS,
            silence=True,
        ),
    ]


JOB_DIED: Final = "job-died"
"""The end of its section's anchor. It is no alarm of a metric: EMR Serverless says it of each job run."""

_NAMED: Final = 5
"""Flows that a message names."""


def job_died(place: Location, flows: Sequence[FlowDeployment], application: str, runbook: str | None) -> str:
    """The message about a job run that has failed or was cancelled, with `<…>` for what the event says.

    Args:
        place: where the job has run.
        flows: one of which it was of.
        application: the name of the application.
        runbook: address of a copy of the runbook.
    """
    # An arrow would end a placeholder of the template.
    named = [f"{flow.flow.source.alias} to {flow.flow.target.alias}" for flow in flows]
    more = f" or {len(named) - _NAMED} others" if len(named) > _NAMED else ""
    return (
        f"Job run <run> on {application} in {place.region} is <state> since <at>; its flow goes from "
        f"{', or '.join(named[:_NAMED])}{more}. What it has done stays. First: aws emr-serverless get-job-run "
        f"--region {place.region} --application-id <application> --job-run-id <run> --query jobRun.name; with that "
        "name, mirrorless backfill, verify or reconcile follow says why. "
        f"Runbook: {runbook or RUNBOOK}#alarm-{JOB_DIED}"
    )
