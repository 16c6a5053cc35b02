"""TODO by its helper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import CfnWaitConditionHandle

from infra.stacks import PlacedStack

if TYPE_CHECKING:
    from constructs import Construct

    from infra.deployment import Deployment, Place


class ControlStack(PlacedStack):
    """The control stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Place) -> None:
        super().__init__(scope, "control", deployment=deployment, place=place, description="control")
        CfnWaitConditionHandle(self, "Nothing")
        for flow in deployment.living_at(place):
            del flow
