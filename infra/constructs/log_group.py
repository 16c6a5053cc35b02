"""Log groups of functions and jobs: retention as configured, encrypted with the configured key."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms
    from constructs import Construct

    from infra.deployment import Deployment


def add_log_group(scope: Construct, name: str, *, deployment: Deployment, key: kms.IKey | None) -> logs.LogGroup:
    """Make the log group `name`, as `Log` of the scope."""
    log = logs.LogGroup(
        scope,
        "Log",
        log_group_name=name,
        retention=logs.RetentionDays.ONE_MONTH,  # replaced below: the enumeration has no way from a number
        removal_policy=RemovalPolicy.DESTROY,
        encryption_key=key,
    )
    cast("logs.CfnLogGroup", log.node.default_child).retention_in_days = deployment.settings.log_retention_days
    return log
