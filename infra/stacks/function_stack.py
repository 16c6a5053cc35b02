"""Stacks of one function for each flow, with the schedules that start it and the alarms about it.

`pull` reads scheduled topics, where the flows say. The standby is the function `control` of flows at home in another
region, beside their tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import FlowFunction
from infra.constructs.schedules import FlowSchedules, pull_starts, standby_starts
from infra.monitoring.alarms import pull_alarms, standby_alarms
from infra.monitoring.flow_monitoring import OnCallTopic, add_alarm
from infra.stacks import PlacedStack
from mirrorless.flow.naming import METRICS_PER_TOPIC_VARIABLE, PULL, STANDBY
from mirrorless.scheduled.functions import CONTROL, PULL_TIMEOUT_SECONDS

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
            description=f"{flow.id}: {description}",
            memory_mb=memory_mb,
            timeout_seconds=timeout_seconds,
            variables=variables,
        )
        FlowSchedules(
            of_flow,
            "Schedules",
            deployment=self.deployment,
            flow=flow,
            place=flow.place_of(part),
            group=self._group,
            functions={part: function},
            starts=starts,
            after=self._endpoints,
        )
        for alarm in alarms:
            add_alarm(of_flow, alarm, deployment=self.deployment, flow=flow, place=flow.place_of(part))


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
        for flow in deployment.flows_at(PULL, place):
            self.add(
                flow,
                description="reads scheduled topics",
                memory_mb=flow.flow.settings.schedule.memory_mb,
                timeout_seconds=PULL_TIMEOUT_SECONDS,
                variables={METRICS_PER_TOPIC_VARIABLE: str(settings.metrics_per_topic).lower()},
                starts=pull_starts(flow),
                alarms=pull_alarms(flow, record_age_seconds=settings.alarms.record_age_seconds),
            )


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
        for flow in deployment.flows_at(STANDBY, place):
            self.add(
                flow,
                description=f"{CONTROL.description}, while {flow.home.region} is silent",
                memory_mb=CONTROL.memory_mb,
                timeout_seconds=CONTROL.timeout_seconds,
                variables={},
                starts=standby_starts(flow),
                alarms=standby_alarms(flow),
            )
