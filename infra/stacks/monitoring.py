"""What is watched at one place: a dashboard and the alarms of every flow that lives there, and who is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.monitoring.flow_monitoring import FlowMonitoring, OnCallTopic
from infra.stacks import PlacedStack

if TYPE_CHECKING:
    from constructs import Construct

    from infra.deployment import Deployment, Location


class MonitoringStack(PlacedStack):
    """The monitoring stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        super().__init__(
            scope, "monitoring", deployment=deployment, place=place, description="dashboards and alarms of its flows"
        )
        if address := deployment.settings.alarms.email:
            OnCallTopic(self, "OnCall", place=place, address=address)
        for flow in deployment.living_at(place):
            FlowMonitoring(self, flow.id, deployment=deployment, flow=flow)
