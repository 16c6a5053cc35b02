"""Event source mappings of a flow: those of literal topics as resources, and the removal of those that were found.

A mapping keeps its logical id for as long as its flow and topic have their names, so that a deployment changes it in
place. Its consumer group is what it resumes by: CloudFormation cannot replace a mapping that has a group's name, since
the new one is made before the old one goes.

Mappings of found topics go with a custom resource whose deletion runs `remove_mappings`. CloudFormation deletes what
depends on others first: the schedules, so that nothing is found any more; then this resource; then the function, its
rights and its role. A flow that is taken out of the configuration goes the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_cdk import CfnTag, CustomResource, Duration
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.constructs.flow_function import FlowFunction
from infra.iam.statements import rights
from mirrorless.naming import FLOW_VARIABLE, flow_tags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from constructs import IDependable

    from infra.deployment import Deployment, FlowDeployment


OWNER = "deployment"
"""The tag of a mapping of the template. Those of topics that are found belong to `refresh_topics`."""

_NAMES = {"KAFKA_BOOTSTRAP_SERVERS": "KafkaBootstrapServers", "KMSKeyArn": "KmsKeyArn"}
"""Names that CloudFormation writes in another way than the API; all others are the same."""


MEMORY_MB = 256
"""Of `remove_mappings`."""

TIMEOUT_SECONDS = 600
"""Enough for some thousand mappings, at ten calls a second and two each. Where it is not, a second try goes on."""

ANSWER_SECONDS = 3 * TIMEOUT_SECONDS
"""How long CloudFormation waits for an answer: a second try of Lambda's has the time to end.
(https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-cloudformation-customresource.html)"""


def mapping_request(flow: FlowDeployment, topic: str) -> dict[str, Any]:
    """The options of CreateEventSourceMapping for a topic that a flow names, all but the function's name.

    Raises:
        ConfigurationError: the topic's consumer group would be too long.
    """
    tags = {**flow_tags(flow.flow.name), "mirrorless:owner": OWNER}
    return {**flow.flow.mapping_request(topic, secret_arn=flow.secret_arn), "Tags": tags}


def template_properties(request: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of `AWS::Lambda::EventSourceMapping` that stand for a request to the API.

    (https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-lambda-eventsourcemapping.html)
    """
    properties: dict[str, Any] = _renamed(request)
    if "Tags" in request:
        properties["Tags"] = [{"Key": name, "Value": value} for name, value in sorted(request["Tags"].items())]
    return properties


def _renamed(value: Any) -> Any:
    match value:
        case dict():
            return {_NAMES.get(name, name): _renamed(each) for name, each in value.items()}
        case list() | tuple():
            return [_renamed(each) for each in value]
        case _:
            return value


def map_topic(
    scope: Construct, flow: FlowDeployment, topic: str, *, function: str, after: Sequence[IDependable] = ()
) -> lambda_.CfnEventSourceMapping:
    """Map a topic to a function.

    Args:
        scope: the flow's construct.
        flow: the flow, which names the topic.
        topic: the topic; part of the logical id, as it is spelled.
        function: ARN of the alias that is called.
        after: what must be there before: the service tries the role's rights when a mapping is made.
    """
    properties = template_properties(mapping_request(flow, topic))
    tags = [CfnTag(key=tag["Key"], value=tag["Value"]) for tag in properties.pop("Tags")]
    mapping = lambda_.CfnEventSourceMapping(
        scope, f"Mapping-{topic}", function_name=function, tags=tags, topics=[topic]
    )
    for name, value in properties.items():
        mapping.add_property_override(name, value)  # as it is: the API is ahead of the CDK's classes
    mapping.node.add_dependency(*after)
    return mapping


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
            variables={FLOW_VARIABLE: flow.flow.function_settings_json()} | flow.control_calls_variables,
        )
        # It comes after the function by naming it, and the function comes after its rights.
        self.resource = CustomResource(
            self,
            "Resource",
            resource_type="Custom::MirrorlessFoundMappings",
            service_token=self.remover.function.function_arn,
            service_timeout=Duration.seconds(ANSWER_SECONDS),
        )
