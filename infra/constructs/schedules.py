"""The schedules of a flow's functions: starts by the minute, whose input is the flow's whole configuration.

A failed start is not repeated: neither Scheduler nor Lambda's own queue tries again, and there is no dead-letter queue.
The next start has the same function and the same input, so late starts would be of no use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct, IDependable

from infra.constructs.annotations import show_in_diff
from infra.constructs.forwarder import settings
from infra.deployment import ALIAS, compact
from mirrorless.flow.naming import PULL, STANDBY, pull_schedule
from mirrorless.scheduled.functions import SCHEDULED
from mirrorless.scheduled.runner import MINUTE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.constructs.flow_function import FlowFunction
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
