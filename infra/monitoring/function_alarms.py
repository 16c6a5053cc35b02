"""Alarms of functions that schedules start: `pull` and a standby, each in its own region and account.

They are not started, or their runs fail; those at home are lost with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from infra.monitoring import metrics
from infra.monitoring.alarms import Alarm, lane_stopped, minutes, nothing_arrives
from infra.monitoring.metrics import MINUTE
from mirrorless.flow.naming import PULL, STANDBY

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment


def not_started(
    flow: FlowDeployment, part: str, *, means: str, first: str, starts: int = 1, period: int = MINUTE, periods: int
) -> Alarm:
    """Fewer starts than these in each of so many periods."""
    return Alarm(
        id=f"{part}-silent",
        means=means,
        first=first,
        metric=metrics.of_function(flow, part, "Invocations", "Sum"),
        below=starts,
        period=period,
        evaluation_periods=periods,
        datapoints_to_alarm=periods,
        missing="breaching",
    )


def runs_fail(flow: FlowDeployment, part: str, *, means: str, first: str, period: int = MINUTE, periods: int) -> Alarm:
    """A run that failed in each of so many periods."""
    return Alarm(
        id=f"{part}-fails",
        means=means,
        first=first,
        metric=metrics.of_function(flow, part, "Errors", "Sum"),
        above=0,
        period=period,
        evaluation_periods=periods,
        datapoints_to_alarm=periods,
    )


MISSED: Final = 3
"""Intervals without a run of some shard, or with a run that failed, after which an operator is called."""

_FIVE_MINUTES: Final = 300


def pull_alarms(flow: FlowDeployment, *, record_age_seconds: int) -> list[Alarm]:
    """Every alarm of a flow that is made beside its function `pull`."""
    schedule = flow.flow.settings.schedule
    interval = MINUTE if schedule.continuous else schedule.interval_seconds
    failing = minutes(max(_FIVE_MINUTES, interval))
    found = [
        not_started(
            flow,
            PULL,
            means=f"A shard of {flow.name} has not been started for {MISSED} intervals: its scheduled topics wait.",
            first="see which of the schedules mirrorless-pull-… is missing, disabled or refused.",
            starts=schedule.shards,
            period=interval,
            periods=MISSED,
        ),
        runs_fail(
            flow,
            PULL,
            means=f"Runs that read scheduled topics of {flow.name} have failed again and again.",
            first="read the last error in the log of the function pull: it names the lane and says what to do.",
            period=failing,
            periods=MISSED,
        ),
        Alarm(
            id="scheduled-late",
            means=f"Scheduled records of {flow.name} arrive {record_age_seconds} s and more after their run was due.",
            first=f"mirrorless status '{flow.name}': does the lag fall? Else add memory or shards.",
            metric=metrics.of_flow(flow, "record-age-ms-max", "Maximum", part=PULL),
            above=(record_age_seconds + (0 if schedule.continuous else interval)) * 1000,
            period=failing,
            evaluation_periods=MISSED,
            datapoints_to_alarm=MISSED,
        ),
    ]
    if metrics.heartbeats_scheduled(flow):
        found += nothing_arrives(flow, 0 if schedule.continuous else interval)
    if flow.pull != flow.home:
        found.append(lane_stopped(flow, part=PULL))
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
            above=0,
            evaluation_periods=3,
        ),
        runs_fail(
            flow,
            STANDBY,
            means=f"The standby of {flow.name} fails: its groups would not move if {flow.home.region} were lost.",
            first="read the last error in the log of the function standby.",
            periods=_PERIODS,
        ),
        not_started(
            flow,
            STANDBY,
            means=f"The standby of {flow.name} is not started: its groups would not move without {flow.home.region}.",
            first="see whether the schedule mirrorless-standby-… is missing, disabled or refused.",
            periods=_PERIODS,
        ),
    ]
