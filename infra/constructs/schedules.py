"""The schedules of a flow's functions: a start every minute, whose input is the flow's whole configuration.

A failed start is not repeated: neither Scheduler nor Lambda's own queue tries again, and there is no dead-letter queue.
The next minute starts the same function with the same input, so late starts would be of no use.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.constructs.annotations import show_in_diff
from infra.constructs.forwarder import settings
from infra.deployment import ALIAS
from mirrorless.errors import ConfigurationError
from mirrorless.naming import FORWARD
from mirrorless.scheduled.functions import LONGEST_INPUT, SCHEDULED
from mirrorless.scheduled.runner import MINUTE
from mirrorless.scheduled.settings import control_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.constructs.flow_function import FlowFunction
    from infra.deployment import Deployment, FlowDeployment
    from mirrorless.scheduled.functions import ScheduledFunction, ScheduledName

GROUP = "mirrorless"
"""The schedules' group in each region."""

OLDEST_SECONDS = int(MINUTE)
"""A start that is late by more is dropped: the next one is due. The least that Scheduler and Lambda's queue take."""


def schedule_input(flow: FlowDeployment) -> dict[str, Any]:
    """Return the settings of the flow's scheduled functions: `mirrorless.scheduled.settings`."""
    forwarder = flow.flow.resource_name(FORWARD)
    return flow.flow.control_settings(f"{forwarder}:{ALIAS}", secret_arn=flow.secret_arn)


def schedule_input_text(flow: FlowDeployment) -> str:
    """Return `schedule_input` as JSON.

    Raises:
        ConfigurationError: it is longer than a schedule's input may be.
    """
    text = json.dumps(schedule_input(flow), separators=(",", ":"), ensure_ascii=False)
    if (length := len(text.encode())) > LONGEST_INPUT:
        raise ConfigurationError(
            f"its scheduled functions' settings have {length:,} bytes, and a schedule's input has {LONGEST_INPUT:,}",
            where=f"flows {flow.name}",
            hint="name topics and groups by patterns, or make two flows of it",
        )
    return text


def scheduled_functions(flow: FlowDeployment) -> tuple[ScheduledFunction, ...]:
    """Return the scheduled functions that have work to do."""
    settings_ = control_settings(json.loads(schedule_input_text(flow)))
    return tuple(each for each in SCHEDULED if each.has_work(settings_))


def group_arn(flow: FlowDeployment) -> str:
    """Return the ARN of the schedules' group."""
    return flow.home.arn("scheduler", f"schedule-group/{GROUP}")


class FlowSchedules(Construct):
    """The schedules of one flow, and the role by which they start its functions.

    Attributes:
        schedules: by the function's name.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        deployment: Deployment,
        flow: FlowDeployment,
        group: scheduler.CfnScheduleGroup,
        functions: Mapping[ScheduledName, FlowFunction],
    ) -> None:
        """Args: functions: by name, at least those that have work."""
        super().__init__(scope, id_)
        due = {each.name: functions[each.name] for each in scheduled_functions(flow)}
        names = {name: flow.flow.resource_name(name) for name in due}
        key_arn = deployment.kms_key(flow.home)
        role = iam.Role(
            self,
            "Role",
            description=f"Starts the scheduled functions of {flow.id}",
            # The service acts for whoever names this role in a schedule: only for this group's.
            # https://docs.aws.amazon.com/scheduler/latest/UserGuide/cross-service-confused-deputy-prevention.html
            assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com").with_conditions(
                {"StringEquals": {"aws:SourceAccount": flow.home.account, "aws:SourceArn": group_arn(flow)}}
            ),
        )
        policy = iam.Policy(self, "Policy", roles=[role])
        policy.add_statements(
            iam.PolicyStatement(
                actions=["lambda:InvokeFunction"], resources=[f"{flow.function_arn(name)}:{ALIAS}" for name in due]
            )
        )
        if key_arn:
            # https://docs.aws.amazon.com/scheduler/latest/UserGuide/encryption-rest.html
            schedules = [flow.home.arn("scheduler", f"schedule/{GROUP}/{name}") for name in names.values()]
            policy.add_statements(
                iam.PolicyStatement(
                    actions=["kms:Decrypt"],
                    resources=[key_arn],
                    conditions={"ArnEquals": {"kms:EncryptionContext:aws:scheduler:schedule:arn": schedules}},
                )
            )
        text = schedule_input_text(flow)
        self.schedules: dict[str, scheduler.CfnSchedule] = {}
        for name, function in due.items():
            lambda_.CfnEventInvokeConfig(
                self,
                f"Queue-{name}",
                function_name=function.function.function_name,
                qualifier=ALIAS,
                maximum_retry_attempts=0,
                maximum_event_age_in_seconds=OLDEST_SECONDS,
            ).node.add_dependency(function.alias)
            schedule = scheduler.CfnSchedule(
                self,
                name,
                name=names[name],
                group_name=group.ref,
                description=f"Starts {name} of {flow.id} every minute",
                schedule_expression="rate(1 minute)",
                flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
                kms_key_arn=key_arn,
                target=scheduler.CfnSchedule.TargetProperty(
                    arn=f"{flow.function_arn(name)}:{ALIAS}",
                    role_arn=role.role_arn,
                    input=text,
                    retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                        maximum_retry_attempts=0, maximum_event_age_in_seconds=OLDEST_SECONDS
                    ),
                ),
            )
            show_in_diff(schedule, settings(flow))
            schedule.node.add_dependency(policy, function.alias)
            self.schedules[name] = schedule
