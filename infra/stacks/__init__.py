"""The stacks, by lifetime: what holds state outlives what replicates. `infra.deployment` has the place of each.

They refer to each other by names and ARNs that the plan computes, never by exports: a region can be deployed, changed
and taken down without the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import DefaultStackSynthesizer, Environment, Stack, Tags
from aws_cdk.aws_iam import ManagedPolicy, PermissionsBoundary

if TYPE_CHECKING:
    from constructs import Construct

    from infra.deployment import Deployment, Location


class PlacedStack(Stack):
    """A stack of one kind in one place."""

    def __init__(
        self,
        scope: Construct,
        kind: str,
        *,
        deployment: Deployment,
        place: Location,
        description: str,
        assets: str | None = None,
    ) -> None:
        """Make it.

        Args:
            scope: the app.
            kind: such as `state`, part of its name.
            deployment: the plan.
            place: where it is.
            description: for the console.
            assets: prefix of its assets' keys in the bootstrap bucket, where a role is to read those of this stack.
        """
        super().__init__(
            scope,
            deployment.artifact_id(kind, place),
            stack_name=deployment.stack_name(kind, place),
            env=Environment(account=place.account, region=place.region),
            synthesizer=None if assets is None else DefaultStackSynthesizer(bucket_prefix=assets),
            # Of the stack: templates stay as they are. CloudFormation gives them to its resources, and an application
            # that is started refuses new ones: the state stack, which is in each place of jobs, has them.
            tags=None if kind == "spark" else deployment.place_tags,
            description=f"Mirrorless: {description}",
        )
        self.deployment = deployment
        self.place = place
        if boundary := deployment.settings.permissions_boundary:
            PermissionsBoundary.of(self).apply(ManagedPolicy.from_managed_policy_name(self, "Boundary", boundary))
        Tags.of(self).add("mirrorless", kind)
        for name, value in deployment.settings.tags.items():
            Tags.of(self).add(name, value)
