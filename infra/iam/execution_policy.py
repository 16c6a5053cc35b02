"""Policies for CloudFormation's execution role, derived from the templates type by type.

    python -m infra.iam.execution_policy cdk.out        prints policies, each small enough to be a managed one
    … cdk.out --boundary mirrorless-boundary            prints the roles' permissions boundary first

With a boundary, the execution role gives rights to roles that have it and to no others, and does not change it.
CloudFormation's registry has the actions that the handlers of each resource type call; cfn-lint ships the registry's
schemas. The types that it lacks are written down here, with their source.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cfnlint.schema import ResourceNotFoundError
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from infra.iam import MANAGED
from mirrorless.errors import MirrorlessError

REGION = "us-east-1"
"""The region whose schemas are read: it has every type of ours."""

_WITHOUT_HANDLERS: Mapping[str, tuple[str, ...]] = {
    # https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/template-custom-resources-lambda.html
    "AWS::CloudFormation::CustomResource": ("lambda:InvokeFunction",),
    "AWS::CloudFormation::WaitConditionHandle": (),
    "AWS::CDK::Metadata": (),
}

_ACTION = re.compile(r"[a-z0-9-]+:[A-Za-z]+\*?")
_OTHER_SERVICES = frozenset(
    {
        *("codedeploy", "ecr", "elasticfilesystem", "firehose", "kinesis"),
        *("s3files", "s3tables", "sso", "vpc-lattice", "vpce"),
    }
)
"""Services that a type can work with and no template of ours uses: streams of tables, images, file systems."""

_BOUNDED = frozenset(
    f"iam:{action}"
    for action in (
        *("AttachRolePolicy", "CreateRole", "DeleteRolePolicy", "DetachRolePolicy"),
        *("PutRolePermissionsBoundary", "PutRolePolicy"),
    )
)
"""Actions that IAM allows or not by the boundary of the role, as it is then.
https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html"""

_UNBINDING = "iam:DeleteRolePermissionsBoundary"
_OF_POLICIES = (
    "iam:CreatePolicy",
    "iam:CreatePolicyVersion",
    "iam:DeletePolicy",
    "iam:DeletePolicyVersion",
    "iam:SetDefaultPolicyVersion",
)

_ALWAYS = (
    "ssm:GetParameters",  # the bootstrap version, which each template reads
    "s3:GetObject",  # templates and code in the bootstrap bucket
    "iam:PassRole",  # to hand a role to the function, schedule or application that runs as it
)


class UnknownType(MirrorlessError):
    """The actions that a resource type needs are not documented."""


def actions_of(type_: str) -> frozenset[str]:
    """The actions that CloudFormation calls to create, read, update and delete a resource of a type.

    Raises:
        UnknownType: neither the registry nor this module has its actions.
    """
    if type_.startswith("Custom::"):
        type_ = "AWS::CloudFormation::CustomResource"
    if type_ in _WITHOUT_HANDLERS:
        return frozenset(_WITHOUT_HANDLERS[type_])
    try:
        schema: Mapping[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, type_).schema
    except ResourceNotFoundError:
        schema = {}
    called = {action.strip() for each in schema.get("handlers", {}).values() for action in each["permissions"]}
    if not called:
        hint = (
            "look its actions up in the Service Authorization Reference, and add them to infra/iam/execution_policy.py"
        )
        raise UnknownType("the registry lacks its handlers' actions", where=type_, hint=hint)
    # The registry's lists are written by hand: one names an operation of the HTTP API, which IAM would refuse.
    named = (action for action in called if _ACTION.fullmatch(action))
    return frozenset(action for action in named if action.partition(":")[0] not in _OTHER_SERVICES)


def actions(types: Iterable[str]) -> list[str]:
    """Every action that a deployment of these resource types needs, in order, without those that a pattern covers."""
    found = set(_ALWAYS).union(*(actions_of(type_) for type_ in types))
    wild = {action[:-1] for action in found if action.endswith("*")}
    return sorted(action for action in found if not any(action != f"{w}*" and action.startswith(w) for w in wild))


def policies(types: Iterable[str], *, boundary: str = "") -> Iterator[dict[str, Any]]:
    """Policies that together allow it, each below IAM's limit. Args: boundary: name of that of all roles, if any."""
    part: list[str] = []
    wanted = actions(types)
    if boundary:
        yield _bounded([each for each in wanted if each in _BOUNDED], boundary)
        wanted = [each for each in wanted if each not in _BOUNDED and each != _UNBINDING]
    for action in wanted:
        if part and len(_written([*part, action])) > MANAGED:
            yield _policy(part)
            part = []
        part.append(action)
    yield _policy(part)


def boundary_of(folder: Path) -> dict[str, Any]:
    """What the roles of every template in a folder may do at most: all that any of them is allowed, wherever."""
    found: set[str] = set()
    for resource in _resources(folder):
        if resource["Type"].startswith("AWS::IAM::"):
            properties = resource["Properties"]
            inline = [each["PolicyDocument"] for each in properties.get("Policies", [])]
            documents = [properties["PolicyDocument"], *inline] if "PolicyDocument" in properties else inline
            for statement in (each for document in documents for each in document["Statement"]):
                if statement["Effect"] == "Allow":
                    action = statement["Action"]
                    found |= {action} if isinstance(action, str) else set(action)
    return _policy(sorted(found))


def types_in(folder: Path) -> set[str]:
    """The resource types of every template in a folder."""
    return {resource["Type"] for resource in _resources(folder)}


def _resources(folder: Path) -> Iterator[Mapping[str, Any]]:
    for path in folder.glob("*.template.json"):
        yield from json.loads(path.read_text()).get("Resources", {}).values()


def _bounded(part: Iterable[str], boundary: str) -> dict[str, Any]:
    """The policy by which only bounded roles are given rights, and the boundary stays what it is."""
    arn = f"arn:*:iam::*:policy/{boundary}"
    only = {"StringLike": {"iam:PermissionsBoundary": arn}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": list(part), "Resource": "*", "Condition": only},
            {"Effect": "Deny", "Action": list(_OF_POLICIES), "Resource": arn},
        ],
    }


def _policy(part: Iterable[str]) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": list(part), "Resource": "*"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _written(part: Iterable[str]) -> str:
    return json.dumps(_policy(part), separators=(",", ":"))


def main() -> None:
    """Print the policies of what was synthesized."""
    parser = argparse.ArgumentParser(prog="python -m infra.iam.execution_policy", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder with templates, such as cdk.out")
    parser.add_argument("--boundary", metavar="NAME", default="", help="of the policy that limits every role")
    given = parser.parse_args()
    folder = given.folder
    try:
        if not (types := types_in(folder)):
            sys.exit(f"{folder} holds no templates: make synth CONFIG=…")
        for policy in [*([boundary_of(folder)] if given.boundary else []), *policies(types, boundary=given.boundary)]:
            print(json.dumps(policy, indent=2))
    except MirrorlessError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
