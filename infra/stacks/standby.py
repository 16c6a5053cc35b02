"""The standby stack: the function `control` of flows at home in another region, beside their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import FlowFunction
from infra.constructs.schedules import STANDBY_GROUP, FlowSchedules, standby_starts
from infra.iam.statements import rights
from infra.monitoring.flow_monitoring import OnCallTopic, add_alarm
from infra.monitoring.standby_alarms import standby_alarms
from infra.stacks import PlacedStack
from mirrorless.naming import STANDBY
from mirrorless.scheduled.functions import CONTROL

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment, Location


class StandbyStack(PlacedStack):
    """The standby stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        """Args: place: the target of flows at home in other regions."""
        super().__init__(
            scope,
            "standby",
            deployment=deployment,
            place=place,
            description="checkpoints and group offsets while a flow's home is silent",
        )
        group = scheduler.CfnScheduleGroup(self, "Schedules", name=STANDBY_GROUP)
        endpoints = add_endpoints(self, deployment, place, made_by=STANDBY)
        topics_elsewhere = {*deployment.homes, *deployment.pulls}
        if deployment.settings.alarms.email and place not in topics_elsewhere:
            OnCallTopic(self, "OnCall", place=place, address=deployment.settings.alarms.email)
        for flow in deployment.standing_by_at(place):
            standby = FlowStandby(self, flow.id, deployment=deployment, flow=flow, group=group)
            for schedule in standby.schedules.schedules.values():
                for needed in endpoints:
                    schedule.node.add_dependency(needed)


class FlowStandby(Construct):
    """The standby of one flow.

    Attributes:
        function: `control`, in the target's region.
        schedules: the one that starts it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        deployment: Deployment,
        flow: FlowDeployment,
        group: scheduler.CfnScheduleGroup,
    ) -> None:
        super().__init__(scope, id_)
        self.function = FlowFunction(
            self,
            "Standby",
            deployment=deployment,
            flow=flow,
            part=STANDBY,
            rights=rights(STANDBY, flow),
            description=f"{flow.id}: {CONTROL.description}, while {flow.home.region} is silent",
            memory_mb=CONTROL.memory_mb,
            timeout_seconds=CONTROL.timeout_seconds,
            variables={},
        )
        self.schedules = FlowSchedules(
            self,
            "Schedules",
            deployment=deployment,
            flow=flow,
            place=flow.place_of(STANDBY),
            group=group,
            functions={STANDBY: self.function},
            starts=standby_starts(flow),
        )
        for alarm in standby_alarms(flow):
            add_alarm(self, alarm, deployment=deployment, flow=flow, place=flow.place_of(STANDBY))
