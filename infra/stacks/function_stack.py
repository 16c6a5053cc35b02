"""A stack of one function for each flow, with the schedules that start it and the alarms about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import FlowFunction
from infra.constructs.schedules import FlowSchedules
from infra.iam.statements import rights
from infra.monitoring.flow_monitoring import OnCallTopic, add_alarm
from infra.stacks import PlacedStack

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from infra.constructs.schedules import ScheduleStart
    from infra.deployment import Deployment, FlowDeployment, Location
    from infra.monitoring.alarms import Alarm


class FunctionStack(PlacedStack):
    """The stack of one part of flows in one place, apart from their homes."""

    def __init__(
        self,
        scope: Construct,
        part: Literal["pull", "standby"],
        *,
        deployment: Deployment,
        place: Location,
        description: str,
        has_topic: Collection[Location],
    ) -> None:
        """Args: has_topic: places where another stack makes the topic."""
        super().__init__(scope, part, deployment=deployment, place=place, description=description)
        self._part = part
        self._group = scheduler.CfnScheduleGroup(self, "Schedules", name=f"{deployment.settings.name}-{part}")
        self._endpoints = add_endpoints(self, deployment, place, made_by=part)
        if deployment.settings.alarms.email and place not in has_topic:
            OnCallTopic(self, "OnCall", deployment=deployment, place=place, address=deployment.settings.alarms.email)

    def add(
        self,
        flow: FlowDeployment,
        *,
        description: str,
        memory_mb: int,
        timeout_seconds: int,
        variables: Mapping[str, str],
        starts: list[ScheduleStart],
        alarms: Iterable[Alarm],
    ) -> None:
        """Add one flow's function. Args: description: of the function, for the console."""
        part, of_flow = self._part, Construct(self, flow.id)
        function = FlowFunction(
            of_flow,
            part.title(),
            deployment=self.deployment,
            flow=flow,
            part=part,
            rights=rights(part, flow),
            description=f"{flow.id}: {description}",
            memory_mb=memory_mb,
            timeout_seconds=timeout_seconds,
            variables=variables,
        )
        schedules = FlowSchedules(
            of_flow,
            "Schedules",
            deployment=self.deployment,
            flow=flow,
            place=flow.place_of(part),
            group=self._group,
            functions={part: function},
            starts=starts,
        )
        for alarm in alarms:
            add_alarm(of_flow, alarm, deployment=self.deployment, flow=flow, place=flow.place_of(part))
        for schedule in schedules.schedules.values():
            for needed in self._endpoints:
                schedule.node.add_dependency(needed)
