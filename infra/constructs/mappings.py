"""Event source mappings of topics that a flow names: the API's request as CloudFormation properties.

A mapping keeps its logical id for as long as its flow and topic have their names, so that a deployment changes it in
place. Its consumer group is what it resumes by: CloudFormation cannot replace a mapping that has a group's name, since
the new one is made before the old one goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_cdk import CfnTag
from aws_cdk import aws_lambda as lambda_

if TYPE_CHECKING:
    from collections.abc import Mapping

    from constructs import Construct, IDependable

    from infra.deployment import FlowDeployment

OWNER = "deployment"
"""Who keeps a mapping of the template, by its tag. Those of topics that are found belong to `refresh_topics`."""

_NAMES = {"KAFKA_BOOTSTRAP_SERVERS": "KafkaBootstrapServers", "KMSKeyArn": "KmsKeyArn"}
"""Names that CloudFormation writes in another way than the API; all others are the same."""


def mapping_request(flow: FlowDeployment, topic: str) -> dict[str, Any]:
    """The options of CreateEventSourceMapping for a topic that a flow names, all but the function's name.

    Raises:
        ConfigurationError: the topic's consumer group would be too long.
    """
    tags = {"mirrorless:flow": flow.flow.name.slug, "mirrorless:owner": OWNER}
    return {**flow.flow.mapping_request(topic, secret_arn=flow.secret_arn), "Tags": tags}


def template_properties(request: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of `AWS::Lambda::EventSourceMapping` that say what a request to the API says.

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
    scope: Construct, flow: FlowDeployment, topic: str, *, alias: lambda_.IAlias, after: IDependable
) -> lambda_.CfnEventSourceMapping:
    """Map a topic to the function behind an alias.

    Args:
        scope: the flow's construct.
        flow: the flow, which names the topic.
        topic: the topic; part of the logical id, as it is spelled.
        alias: whom to call.
        after: what must be there before: the service tries the role's rights when a mapping is made.
    """
    properties = template_properties(mapping_request(flow, topic))
    tags = [CfnTag(key=tag["Key"], value=tag["Value"]) for tag in properties.pop("Tags")]
    mapping = lambda_.CfnEventSourceMapping(
        scope, f"Mapping-{topic}", function_name=alias.function_arn, tags=tags, topics=[topic]
    )
    for name, value in properties.items():
        mapping.add_property_override(name, value)  # as it is: the API is ahead of the CDK's classes
    mapping.node.add_dependency(after)
    return mapping
