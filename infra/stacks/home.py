"""The stacks of flows' functions: at home replication, mappings, control and monitoring; elsewhere `pull` and standby.

A stack of the latter has one function for each flow, with the schedules that start it and the alarms about it. `pull`
reads scheduled topics, where the flows say. The standby is the function `control` of flows at home in another region,
beside their tables.

Schedules start by the minute, and their input is the flow's whole configuration. A failed start is not repeated:
neither Scheduler nor Lambda's own queue tries again, and there is no dead-letter queue. The next start has the same
function and the same input, so late starts would be of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct, IDependable

from infra.constructs.annotations import show_in_diff
from infra.constructs.endpoints import add_endpoints
from infra.constructs.flow_function import FlowFunction
from infra.constructs.forwarder import Forwarder, FoundMappings, map_topics, settings
from infra.deployment import ALIAS, compact
from infra.monitoring.alarms import Alarm, pull_alarms, standby_alarms
from infra.monitoring.flow_monitoring import FlowMonitoring, OnCallTopic, add_alarm
from infra.stacks import PlacedStack
from mirrorless.flow.naming import FORWARD, METRICS_PER_TOPIC_VARIABLE, PULL, STANDBY, pull_schedule
from mirrorless.scheduled.functions import CONTROL, PULL_TIMEOUT_SECONDS, SCHEDULED
from mirrorless.scheduled.runner import MINUTE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.deployment import Deployment, FlowDeployment, Location
    from infra.iam import Part
    from mirrorless.flow.settings import FlowSettings
    from mirrorless.scheduled.functions import ScheduledFunction

OLDEST_SECONDS = int(MINUTE)
"""A start that is late by more is dropped: the next one is due. The least that Scheduler and Lambda's queue take."""


def scheduled_functions(flow: FlowDeployment) -> tuple[ScheduledFunction, ...]:
    """Return the scheduled functions that have work to do."""
    return tuple(each for each in SCHEDULED if each.has_work(flow.schedule_input()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStart:
    """One schedule.

    Attributes:
        id: part of its logical id.
        name: its name.
        part: the function that it starts.
        minutes: between two starts.
        input: JSON.
        description: for the console.
    """

    id: str
    name: str
    part: Part
    minutes: int
    input: str
    description: str


class FlowSchedules(Construct):
    """Schedules of one flow, and the role by which they start its functions."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        deployment: Deployment,
        flow: FlowDeployment,
        place: Location,
        group: scheduler.CfnScheduleGroup,
        functions: Mapping[Part, FlowFunction],
        starts: Sequence[ScheduleStart],
        after: Sequence[IDependable],
    ) -> None:
        """Make them. Args: place: where. functions: those that are started, by part. after: what goes after them."""
        super().__init__(scope, id_)
        parts = dict.fromkeys(start.part for start in starts)
        group_name, key_arn = str(group.name), deployment.kms_key(place)
        role = iam.Role(
            self,
            "Role",
            path=flow.role_path("schedules"),
            description=f"Starts the scheduled functions of {flow.id}",
            # The service acts for whoever names this role in a schedule: only for this group's.
            # https://docs.aws.amazon.com/scheduler/latest/UserGuide/cross-service-confused-deputy-prevention.html
            assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com").with_conditions(
                {
                    "StringEquals": {
                        "aws:SourceAccount": place.account,
                        "aws:SourceArn": place.arn("scheduler", f"schedule-group/{group_name}"),
                    }
                }
            ),
        )
        policy = iam.Policy(self, "Policy", roles=[role])
        policy.add_statements(
            iam.PolicyStatement(
                actions=["lambda:InvokeFunction"], resources=[f"{flow.function_arn(part)}:{ALIAS}" for part in parts]
            )
        )
        if key_arn:
            # https://docs.aws.amazon.com/scheduler/latest/UserGuide/encryption-rest.html
            schedules = [place.arn("scheduler", f"schedule/{group_name}/{start.name}") for start in starts]
            policy.add_statements(
                iam.PolicyStatement(
                    actions=["kms:Decrypt"],
                    resources=[key_arn],
                    conditions={"ArnEquals": {"kms:EncryptionContext:aws:scheduler:schedule:arn": schedules}},
                )
            )
        for part in parts:
            lambda_.CfnEventInvokeConfig(
                self,
                f"Queue-{part}",
                function_name=functions[part].function.function_name,
                qualifier=ALIAS,
                maximum_retry_attempts=0,
                maximum_event_age_in_seconds=OLDEST_SECONDS,
            ).node.add_dependency(functions[part].alias)
        for start in starts:
            often = "1 minute" if start.minutes == 1 else f"{start.minutes} minutes"
            schedule = scheduler.CfnSchedule(
                self,
                start.id,
                name=start.name,
                group_name=group.ref,
                description=start.description,
                schedule_expression=f"rate({often})",
                flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
                kms_key_arn=key_arn,
                target=scheduler.CfnSchedule.TargetProperty(
                    arn=f"{flow.function_arn(start.part)}:{ALIAS}",
                    role_arn=role.role_arn,
                    input=start.input,
                    retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                        maximum_retry_attempts=0, maximum_event_age_in_seconds=OLDEST_SECONDS
                    ),
                ),
            )
            show_in_diff(schedule, settings(flow))
            schedule.node.add_dependency(policy, functions[start.part].alias, *after)


def control_starts(flow: FlowDeployment) -> list[ScheduleStart]:
    """The schedules of the scheduled functions that have work to do."""
    return [_every_minute(flow, each.name, flow.schedule_input(), each.name) for each in scheduled_functions(flow)]


def standby_starts(flow: FlowDeployment) -> list[ScheduleStart]:
    """The schedule of the function that stands by."""
    return [_every_minute(flow, STANDBY, flow.flow.standby_settings(), "the standby")]


def _every_minute(flow: FlowDeployment, part: Part, settings: FlowSettings, what: str) -> ScheduleStart:
    return ScheduleStart(
        id=part,
        name=flow.flow.resource_name(part),
        part=part,
        minutes=1,
        input=compact(settings),
        description=f"Starts {what} of {flow.id} every minute",
    )


def pull_starts(flow: FlowDeployment) -> list[ScheduleStart]:
    """The schedules of the function `pull`, one for each shard.

    A continuous run takes over from the one before it, so a start every minute leaves no hole where one fails.
    """
    schedule = flow.flow.settings.schedule
    minutes = 1 if schedule.continuous else schedule.interval_seconds // OLDEST_SECONDS
    return [
        ScheduleStart(
            id=f"Shard-{shard}",
            name=pull_schedule(flow.flow.name, shard, deployment=flow.flow.deployment),
            part=PULL,
            minutes=minutes,
            input=compact(flow.flow.pull_settings(shard)),
            description=f"Starts shard {shard} of {schedule.shards} of {flow.id}",
        )
        for shard in range(schedule.shards)
    ]


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
