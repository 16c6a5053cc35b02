"""The stacks at a flow's home: replication, mappings, control and monitoring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import FlowFunction
from infra.constructs.forwarder import Forwarder, FoundMappings, map_topics
from infra.constructs.schedules import FlowSchedules, control_starts
from infra.deployment import ALIAS
from infra.monitoring.flow_monitoring import FlowMonitoring, OnCallTopic
from infra.stacks import PlacedStack
from mirrorless.flow.naming import FORWARD
from mirrorless.scheduled.functions import SCHEDULED

if TYPE_CHECKING:
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
