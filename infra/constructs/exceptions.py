"""Exceptions from cdk-nag's security rules, each with its reason, next to what it excuses.

cdk-nag 3 is a validation plugin; an acknowledgement names one rule, and for IAM's wildcards the very resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Acknowledgment, Validations

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
