"""The stacks of flows' functions: at home replication, mappings, control and monitoring; elsewhere `pull` and standby.

A stack of the latter has one function for each flow, with the schedules that start it and the alarms about it. `pull`
reads scheduled topics, where the flows say. The standby is the function `control` of flows at home in another region,
beside their tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import FlowFunction
from infra.constructs.forwarder import Forwarder, FoundMappings, map_topics
from infra.constructs.schedules import FlowSchedules, control_starts, pull_starts, standby_starts
from infra.deployment import ALIAS
from infra.monitoring.alarms import pull_alarms, standby_alarms
from infra.monitoring.flow_monitoring import FlowMonitoring, OnCallTopic, add_alarm
from infra.stacks import PlacedStack
from mirrorless.flow.naming import FORWARD, METRICS_PER_TOPIC_VARIABLE, PULL, STANDBY
from mirrorless.scheduled.functions import CONTROL, PULL_TIMEOUT_SECONDS, SCHEDULED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from infra.constructs.schedules import ScheduleStart
    from infra.deployment import Deployment, FlowDeployment, Location
    from infra.iam import Part
    from infra.monitoring.alarms import Alarm


class ReplicationStack(PlacedStack):
    """The replication stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        """Args: place: where the flows' functions live."""
        super().__init__(
            scope, "replication", deployment=deployment, place=place, description="forwards records of source topics"
        )
        flows = deployment.flows_at(FORWARD, place)
        endpoints = add_endpoints(self, deployment, place)
        for flow in flows:
            Forwarder(self, deployment=deployment, flow=flow, after=endpoints)


class MappingsStack(PlacedStack):
    """One of the stacks of one place that have mappings beside those of the replication stack."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location, number: int) -> None:
        """Args: number: from 1."""
        super().__init__(
            scope, f"mappings-{number}", deployment=deployment, place=place, description="mappings of source topics"
        )
        for flow in deployment.flows_at(FORWARD, place):
            function = f"{flow.function_arn(FORWARD)}:{ALIAS}"
            map_topics(Construct(self, flow.id), deployment, flow, stack=number, function=function)


class FlowControl(Construct):
    """The scheduled functions of one flow, what starts them, and the mappings of found topics."""

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
        functions: dict[Part, FlowFunction] = {
            each.name: FlowFunction(
                self,
                each.name,
                deployment=deployment,
                flow=flow,
                part=each.name,
                description=f"{flow.id}: {each.description}",
                memory_mb=each.memory_mb,
                timeout_seconds=each.timeout_seconds,
                variables={},
            )
            for each in SCHEDULED
        }
        found = FoundMappings(self, "Found", deployment=deployment, flow=flow)
        # Schedules are deleted first: what is removed must not be found again.
        FlowSchedules(
            self,
            "Schedules",
            deployment=deployment,
            flow=flow,
            place=flow.home,
            group=group,
            functions=functions,
            starts=control_starts(flow),
            after=[found.resource],
        )


class ControlStack(PlacedStack):
    """The control stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        super().__init__(
            scope,
            "control",
            deployment=deployment,
            place=place,
            description="heartbeats, checkpoints, and found topics",
        )
        group = scheduler.CfnScheduleGroup(self, "Schedules", name=deployment.settings.name)
        for flow in deployment.flows_at(FORWARD, place):
            FlowControl(self, flow.id, deployment=deployment, flow=flow, group=group)


class MonitoringStack(PlacedStack):
    """The monitoring stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        super().__init__(
            scope, "monitoring", deployment=deployment, place=place, description="dashboards and alarms of its flows"
        )
        if address := deployment.settings.alarms.email:
            OnCallTopic(self, "OnCall", deployment=deployment, place=place, address=address)
        for flow in deployment.flows_at(FORWARD, place):
            FlowMonitoring(self, flow.id, deployment=deployment, flow=flow)


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
