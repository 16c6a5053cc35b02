"""Alarms of the function that reads a flow's scheduled topics, in its region and account.

They are about the flow, not about each shard: one alarm for all of them, whose first action finds the shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from infra.monitoring import metrics
from infra.monitoring.alarms import Alarm, lane_stopped, minutes, nothing_arrives
from infra.monitoring.function_alarms import not_started, runs_fail
from infra.monitoring.metrics import MINUTE
from mirrorless.naming import PULL

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment

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
