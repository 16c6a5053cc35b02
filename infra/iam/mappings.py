"""Rights on event source mappings: `refresh_topics` manages those it creates, `remove_mappings` deletes them.

A mapping has no name of ours, only a UUID that Lambda gives it. What narrows these rights is the function that a
mapping calls: `lambda:FunctionArn` is a condition key for creating, changing and deleting
(https://docs.aws.amazon.com/service-authorization/latest/reference/list_lambda.html). AWS does not say whether a
mapping to an alias shows the alias there or its function, so both are named; it is one function either way.

No `iam:PassRole`: a mapping's pollers take the function's role by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.deployment import ALIAS
from infra.iam import Right
from mirrorless.flow.naming import flow_tags

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment
    from infra.iam import Part

_UNNAMED = "Lambda names a mapping by a UUID when it is made"


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part of a flow may do."""
    match part:
        case "refresh_topics":
            return [
                _listing(),
                _creation(flow),
                _tagging(flow),
                _reading_of_tags(flow),
                _change(flow, "Update", "Delete"),
            ]
        case "remove_mappings":
            return [_listing(), _reading_of_tags(flow), _change(flow, "Delete")]
        case _:
            return []


def _listing() -> Right:
    return Right(
        actions=("lambda:ListEventSourceMappings",),
        resources=("*",),
        reason="IAM has no resource for listing event source mappings",
    )


def _creation(flow: FlowDeployment) -> Right:
    return Right(
        actions=("lambda:CreateEventSourceMapping",),
        resources=("*",),
        conditions=_to_the_forwarder(flow),
        reason="IAM has no resource for a mapping that is not there yet; the condition allows the forwarder only",
    )


def _tagging(flow: FlowDeployment) -> Right:
    # What is created with tags needs it (https://docs.aws.amazon.com/lambda/latest/dg/tags-esm.html). A new mapping has
    # no tags; others have those of their flow, which must be this one: nobody else's mapping becomes ours.
    tags = flow_tags(flow.flow.name)
    return Right(
        actions=("lambda:TagResource",),
        resources=(_every_mapping(flow),),
        conditions={
            "StringEquals": {f"aws:RequestTag/{key}": value for key, value in tags.items()},
            "StringEqualsIfExists": {f"aws:ResourceTag/{key}": value for key, value in tags.items()},
        },
        reason=f"{_UNNAMED}, and its tags are given with it",
    )


def _reading_of_tags(flow: FlowDeployment) -> Right:
    return Right(
        actions=("lambda:ListTags",),
        resources=(_every_mapping(flow),),
        reason=f"{_UNNAMED}; its tags say whose it is",
    )


def _change(flow: FlowDeployment, *verbs: str) -> Right:
    return Right(
        actions=tuple(f"lambda:{verb}EventSourceMapping" for verb in verbs),
        resources=(_every_mapping(flow),),
        conditions=_to_the_forwarder(flow),
        reason=f"{_UNNAMED}; the condition allows those of the flow's forwarder only",
    )


def _every_mapping(flow: FlowDeployment) -> str:
    return flow.home.arn("lambda", "event-source-mapping:*")


def _to_the_forwarder(flow: FlowDeployment) -> dict[str, dict[str, tuple[str, ...]]]:
    forwarder = flow.function_arn("forward")
    return {"ArnEquals": {"lambda:FunctionArn": (forwarder, f"{forwarder}:{ALIAS}")}}
