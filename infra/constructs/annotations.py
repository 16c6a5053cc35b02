"""What is added to resources for people: reasons of exceptions from security rules, and settings that `cdk diff` shows.

cdk-nag 3 is a validation plugin; an acknowledgement names one rule, and for IAM's wildcards the very resource. Settings
stand in metadata by name: a function's environment and a schedule's input hold them as one long text each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from aws_cdk import Acknowledgment, CfnResource, Validations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from constructs import IConstruct

    from infra.iam import Right


_RULES = "AwsSolutions::AwsSolutions-"


def excuse(construct: IConstruct, rule: str, reason: str) -> None:
    """Acknowledge one rule, such as `L1`, for a construct and what is in it."""
    Validations.of(construct).acknowledge(Acknowledgment(id=f"{_RULES}{rule}", reason=reason))


def acknowledge(policy: IConstruct, rights: Sequence[Right]) -> None:
    """Acknowledge the wildcards of rights, which say their reasons.

    Raises:
        ValueError: a right has a wildcard and no reason.
    """
    for right in rights:
        for wild in (*right.actions, *right.resources):
            if "*" not in wild:
                continue
            if not right.reason:
                raise ValueError(f"{wild} has a wildcard, and its right does not say why: {right}")
            kind = "Action" if wild in right.actions else "Resource"
            excuse(policy, f"IAM5[{kind}::{wild}]", right.reason)


def show_in_diff(construct: IConstruct, settings: Any) -> None:
    """Attach nested plain values to a construct's resource; CloudFormation stores them and does nothing with them."""
    resource = cast("CfnResource", construct.node.default_child or construct)
    resource.add_metadata("mirrorless", _shown(settings))


def _shown(value: Any) -> Any:
    match value:
        case dict():
            return {name: _shown(each) for name, each in value.items()}
        case list() | tuple():
            return [_shown(each) for each in value]
        case bool():
            return "true" if value else "false"  # the diff leaves out the values of real ones
        case _:
            return value
