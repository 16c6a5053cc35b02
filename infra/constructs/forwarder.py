"""The replication of one flow: the forwarder behind its alias, and its event source mappings.

Those of literal topics are resources; of those that were found there is the removal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_cdk import CfnTag, CustomResource, Duration
from aws_cdk import aws_lambda as lambda_
from constructs import Construct, IDependable

from infra.constructs.annotations import show_in_diff
from infra.constructs.flow_function import FlowFunction
from mirrorless.flow.naming import FLOW_VARIABLE, METRICS_PER_TOPIC_VARIABLE, PARTIAL_RESPONSES_VARIABLE, flow_tags

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


def variables(deployment: Deployment, flow: FlowDeployment) -> dict[str, str]:
    """Return the forwarder's environment."""
    return {
        FLOW_VARIABLE: flow.flow.function_settings_json(),
        METRICS_PER_TOPIC_VARIABLE: str(deployment.settings.metrics_per_topic).lower(),
        PARTIAL_RESPONSES_VARIABLE: str(flow.flow.partial_responses).lower(),
    }


def settings(flow: FlowDeployment) -> dict[str, Any]:
    """Return the flow's settings and clusters as they are written, for `cdk diff` to show changes of them."""

    def written(section: Any) -> Any:
        return section.model_dump(mode="json", by_alias=True, exclude_none=True)

    ends = (flow.flow.source, flow.flow.target)
    clusters = {
        end.alias: {
            "bootstrap.servers": list(end.bootstrap),
            **({"msk.cluster.arn": end.msk_arn} if end.msk_arn else {}),
            "authentication": written(end.authentication),
            **({"vpc": written(end.vpc)} if end.vpc else {}),
            **{f"producer.{name}": value for name, value in end.producer.items()},
        }
        for end in ends
    }
    return {"flow": flow.name, "clusters": clusters, "settings": written(flow.flow.settings)}


class Forwarder(Construct):
    """The replication of one flow.

    Attributes:
        function: the forwarder.
    """

    def __init__(
        self, scope: Construct, *, deployment: Deployment, flow: FlowDeployment, after: Sequence[IDependable] = ()
    ) -> None:
        """Args: after: other resources that pollers need, such as endpoints."""
        super().__init__(scope, flow.id)
        chosen = flow.flow.settings.function
        self.function = FlowFunction(
            self,
            "Forward",
            deployment=deployment,
            flow=flow,
            part="forward",
            description=f"Mirrorless: replicates {flow.name}",
            memory_mb=chosen.memory_mb,
            timeout_seconds=chosen.timeout_seconds,
            variables=variables(deployment, flow),
            reserved_concurrency=chosen.reserved_concurrency,
        )
        show_in_diff(self.function.function, settings(flow))
        called, needed = self.function.alias.function_arn, (self.function.policy, *after)
        map_topics(self, deployment, flow, stack=0, function=called, after=needed)


def map_topics(
    scope: Construct,
    deployment: Deployment,
    flow: FlowDeployment,
    *,
    stack: int,
    function: str,
    after: Sequence[IDependable] = (),
) -> None:
    """Map those topics of a flow that belong in one of its stacks. Args: as of `map_topic`. stack: its number."""
    for topic in deployment.topics_of_stack(flow, stack):
        map_topic(scope, flow, topic, function=function, after=after)
