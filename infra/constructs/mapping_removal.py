"""A custom resource whose deletion runs `remove_mappings`, so that mappings of found topics go with their flow.

CloudFormation deletes what depends on others first: the schedules, so that nothing is found any more; then this
resource, which deletes what was found; then the function that does so, its rights and its role. A flow that is taken
out of the configuration goes the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import CustomResource, Duration
from constructs import Construct

from infra.constructs.flow_function import FlowFunction
from infra.iam.statements import rights
from mirrorless.naming import FLOW_VARIABLE

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment

MEMORY_MB = 256
TIMEOUT_SECONDS = 600
"""Enough for some thousand mappings, at ten calls a second and two calls each."""

PATIENCE_SECONDS = 3 * TIMEOUT_SECONDS
"""How long CloudFormation waits for an answer: while Lambda tries once more what died, and not for an hour.
(https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-cloudformation-customresource.html)"""


class FoundMappings(Construct):
    """The mappings that `refresh_topics` makes, as something that CloudFormation can delete.

    Attributes:
        remover: the function that deletes them.
        resource: what schedules depend on, so that they go before it.
    """

    def __init__(self, scope: Construct, id_: str, *, deployment: Deployment, flow: FlowDeployment) -> None:
        super().__init__(scope, id_)
        self.remover = FlowFunction(
            self,
            "Remover",
            deployment=deployment,
            flow=flow,
            part="remove_mappings",
            rights=rights("remove_mappings", flow),
            description=f"{flow.id}: deletes the mappings of found topics when the flow goes",
            memory_mb=MEMORY_MB,
            timeout_seconds=TIMEOUT_SECONDS,
            variables={FLOW_VARIABLE: flow.flow.function_settings_json()},
        )
        # It comes after the function by naming it, and the function comes after its rights.
        self.resource = CustomResource(
            self,
            "Resource",
            resource_type="Custom::MirrorlessFoundMappings",
            service_token=self.remover.function.function_arn,
            service_timeout=Duration.seconds(PATIENCE_SECONDS),
        )
