"""The policies of a role: one inline, and managed ones beside it for what is too long for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_iam as iam

from infra.constructs.annotations import acknowledge
from infra.iam.policies import divided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from constructs import Construct

    from infra.iam import Right


def add_policies(scope: Construct, role: iam.Role, rights: Sequence[Right]) -> iam.Policy:
    """Give a role its rights. Returns the inline policy; what depends on it comes after the managed ones, too."""
    inline, *managed = divided(rights)
    policy = iam.Policy(scope, "Policy", roles=[role], statements=[right.statement() for right in inline])
    acknowledge(policy, inline)
    for number, more in enumerate(managed, start=1):
        added = iam.ManagedPolicy(
            policy, f"Managed{number}", roles=[role], statements=[right.statement() for right in more]
        )
        acknowledge(added, more)
    return policy
