"""Alarms of a flow's standby, in the target's region and account: those at home are lost with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from infra.monitoring import metrics
from infra.monitoring.alarms import Alarm
from infra.monitoring.function_alarms import not_started, runs_fail
from mirrorless.naming import STANDBY

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment

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
