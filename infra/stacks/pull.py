"""The pull stack: the functions that read scheduled topics, their schedules and alarms, where the flows say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.constructs.schedules import pull_starts
from infra.monitoring.pull_alarms import pull_alarms
from infra.stacks.function_stack import FunctionStack
from mirrorless.naming import METRICS_PER_TOPIC_VARIABLE, PULL
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from constructs import Construct

    from infra.deployment import Deployment, Location


class PullStack(FunctionStack):
    """The pull stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        """Args: place: where scheduled topics of flows are read."""
        super().__init__(
            scope,
            PULL,
            deployment=deployment,
            place=place,
            description="reads scheduled topics",
            has_topic=deployment.homes,
        )
        settings = deployment.settings
        for flow in deployment.pulling_at(place):
            self.add(
                flow,
                description="reads scheduled topics",
                memory_mb=flow.flow.settings.schedule.memory_mb,
                timeout_seconds=PULL_TIMEOUT_SECONDS,
                variables={METRICS_PER_TOPIC_VARIABLE: str(settings.metrics_per_topic).lower()},
                starts=pull_starts(flow),
                alarms=pull_alarms(flow, record_age_seconds=settings.alarms.record_age_seconds),
            )
