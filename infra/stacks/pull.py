"""The pull stack: the functions that read scheduled topics, their schedules and alarms, where the flows say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import FlowFunction
from infra.constructs.schedules import PULL_GROUP, FlowSchedules, pull_starts
from infra.iam.statements import rights
from infra.monitoring.flow_monitoring import OnCallTopic, add_alarm
from infra.monitoring.pull_alarms import pull_alarms
from infra.stacks import PlacedStack
from mirrorless.naming import METRICS_PER_TOPIC_VARIABLE, PULL
from mirrorless.scheduled.functions import PULL_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment, Location


class PullStack(PlacedStack):
    """The pull stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        """Args: place: where scheduled topics of flows are read."""
        super().__init__(scope, "pull", deployment=deployment, place=place, description="reads scheduled topics")
        group = scheduler.CfnScheduleGroup(self, "Schedules", name=PULL_GROUP)
        endpoints = add_endpoints(self, deployment, place, made_by=PULL)
        if deployment.settings.alarms.email and place not in deployment.homes:
            OnCallTopic(self, "OnCall", place=place, address=deployment.settings.alarms.email)
        for flow in deployment.pulling_at(place):
            pull = FlowPull(self, flow.id, deployment=deployment, flow=flow, group=group)
            for schedule in pull.schedules.schedules.values():
                for needed in endpoints:
                    schedule.node.add_dependency(needed)


class FlowPull(Construct):
    """The reader of one flow's scheduled topics.

    Attributes:
        function: `pull`.
        schedules: one for each shard.
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
            "Pull",
            deployment=deployment,
            flow=flow,
            part=PULL,
            rights=rights(PULL, flow),
            description=f"{flow.id}: reads scheduled topics",
            memory_mb=flow.flow.settings.schedule.memory_mb,
            timeout_seconds=PULL_TIMEOUT_SECONDS,
            variables={METRICS_PER_TOPIC_VARIABLE: str(deployment.settings.metrics_per_topic).lower()},
        )
        self.schedules = FlowSchedules(
            self,
            "Schedules",
            deployment=deployment,
            flow=flow,
            place=flow.place_of(PULL),
            group=group,
            functions={PULL: self.function},
            starts=pull_starts(flow),
        )
        for alarm in pull_alarms(flow, record_age_seconds=deployment.settings.alarms.record_age_seconds):
            add_alarm(self, alarm, deployment=deployment, flow=flow, place=flow.place_of(PULL))
