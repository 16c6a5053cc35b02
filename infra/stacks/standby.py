"""The standby stack: the function `control` of flows at home in another region, beside their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.constructs.schedules import standby_starts
from infra.monitoring.standby_alarms import standby_alarms
from infra.stacks.function_stack import FunctionStack
from mirrorless.naming import STANDBY
from mirrorless.scheduled.functions import CONTROL

if TYPE_CHECKING:
    from constructs import Construct

    from infra.deployment import Deployment, Location


class StandbyStack(FunctionStack):
    """The standby stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        """Args: place: the target of flows at home in other regions."""
        super().__init__(
            scope,
            STANDBY,
            deployment=deployment,
            place=place,
            description="checkpoints and group offsets while a flow's home is silent",
            has_topic={*deployment.homes, *deployment.pulls},
        )
        for flow in deployment.standing_by_at(place):
            self.add(
                flow,
                description=f"{CONTROL.description}, while {flow.home.region} is silent",
                memory_mb=CONTROL.memory_mb,
                timeout_seconds=CONTROL.timeout_seconds,
                variables={},
                starts=standby_starts(flow),
                alarms=standby_alarms(flow),
            )
