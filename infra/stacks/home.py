"""The stacks of flows' functions: at home replication, mappings, control and monitoring; elsewhere `pull` and standby.

A stack of the latter has one function for each flow, with the schedules that start it and the alarms about it. `pull`
reads scheduled topics, where the flows say. The standby is the function `control` of flows at home in another region,
beside their tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import FlowFunction
from infra.constructs.forwarder import Forwarder, FoundMappings, map_topics
from infra.constructs.schedules import FlowSchedules, ScheduleStart, control_starts, pull_starts, standby_starts
from infra.deployment import ALIAS
from infra.monitoring.alarms import Alarm, pull_alarms, standby_alarms
from infra.monitoring.flow_monitoring import FlowMonitoring, OnCallTopic, add_alarm
from infra.stacks import PlacedStack
from mirrorless.flow.naming import FORWARD, METRICS_PER_TOPIC_VARIABLE, PULL, STANDBY
from mirrorless.scheduled.functions import CONTROL, PULL_TIMEOUT_SECONDS, SCHEDULED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.deployment import Deployment, FlowDeployment, Location
    from infra.iam import Part


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
        self, scope: Construct, part: Literal["pull", "standby"], *, deployment: Deployment, place: Location
    ) -> None:
        """Args: place: where scheduled topics are read; or the target of flows at home in other regions."""
        description = "reads scheduled topics"
        elsewhere = set(deployment.homes)  # there another stack makes the topic
        if part == STANDBY:
            description = "checkpoints and group offsets while a flow's home is silent"
            elsewhere |= set(deployment.pulls)
        super().__init__(scope, part, deployment=deployment, place=place, description=description)
        group = scheduler.CfnScheduleGroup(self, "Schedules", name=f"{deployment.settings.name}-{part}")
        endpoints = add_endpoints(self, deployment, place, made_by=part)
        if (address := deployment.settings.alarms.email) and place not in elsewhere:
            OnCallTopic(self, "OnCall", deployment=deployment, place=place, address=address)
        for flow in deployment.flows_at(part, place):
            of_flow, (options, starts, alarms) = Construct(self, flow.id), _OF_PART[part](deployment, flow)
            function = FlowFunction(of_flow, part.title(), deployment=deployment, flow=flow, part=part, **options)
            FlowSchedules(
                of_flow,
                "Schedules",
                deployment=deployment,
                flow=flow,
                place=place,
                group=group,
                functions={part: function},
                starts=starts,
                after=endpoints,
            )
            for alarm in alarms:
                add_alarm(of_flow, alarm, deployment=deployment, flow=flow, place=place)


FunctionOptions = tuple[dict[str, Any], list[ScheduleStart], list[Alarm]]
"""Of a function, what starts it, and the alarms about it."""


def _pull(deployment: Deployment, flow: FlowDeployment) -> FunctionOptions:
    settings = deployment.settings
    options = {
        "description": f"{flow.id}: reads scheduled topics",
        "memory_mb": flow.flow.settings.schedule.memory_mb,
        "timeout_seconds": PULL_TIMEOUT_SECONDS,
        "variables": {METRICS_PER_TOPIC_VARIABLE: str(settings.metrics_per_topic).lower()},
    }
    return options, pull_starts(flow), pull_alarms(flow, record_age_seconds=settings.alarms.record_age_seconds)


def _standby(_: Deployment, flow: FlowDeployment) -> FunctionOptions:
    options = {
        "description": f"{flow.id}: {CONTROL.description}, while {flow.home.region} is silent",
        "memory_mb": CONTROL.memory_mb,
        "timeout_seconds": CONTROL.timeout_seconds,
        "variables": {},
    }
    return options, standby_starts(flow), standby_alarms(flow)


_OF_PART: Final[Mapping[str, Callable[[Deployment, FlowDeployment], FunctionOptions]]] = {
    PULL: _pull,
    STANDBY: _standby,
}
