"""Alarms of a function that a schedule starts: it is not started, or its runs fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.monitoring import metrics
from infra.monitoring.alarms import Alarm
from infra.monitoring.metrics import MINUTE

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
