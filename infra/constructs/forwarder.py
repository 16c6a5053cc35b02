"""The replication of one flow: the forwarder behind its alias, and the mappings of topics that are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from constructs import Construct, IDependable

from infra.constructs.annotations import show_in_diff
from infra.constructs.flow_function import FlowFunction
from infra.constructs.mappings import map_topic
from infra.iam import statements
from mirrorless.naming import FLOW_VARIABLE, METRICS_PER_TOPIC_VARIABLE, PARTIAL_RESPONSES_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.deployment import Deployment, FlowDeployment


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
            rights=statements.rights("forward", flow),
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
