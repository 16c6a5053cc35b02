"""Policies for CloudFormation's execution role, derived from the templates type by type.

    python -m infra.iam.execution_policy cdk.out        prints policies, each small enough to be a managed one

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

from mirrorless.errors import MirrorlessError

LARGEST = 6_144
"""Characters of a managed policy at most, white space apart.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"""

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


def policies(types: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Policies that together allow it, each below IAM's limit."""
    part: list[str] = []
    for action in actions(types):
        if part and len(_written([*part, action])) > LARGEST:
            yield _policy(part)
            part = []
        part.append(action)
    yield _policy(part)


def types_in(folder: Path) -> set[str]:
    """The resource types of every template in a folder."""
    templates = (json.loads(path.read_text()) for path in folder.glob("*.template.json"))
    return {resource["Type"] for template in templates for resource in template.get("Resources", {}).values()}


def _policy(part: Iterable[str]) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": list(part), "Resource": "*"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _written(part: Iterable[str]) -> str:
    return json.dumps(_policy(part), separators=(",", ":"))


def main() -> None:
    """Print the policies of what was synthesized."""
    parser = argparse.ArgumentParser(prog="python -m infra.iam.execution_policy", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder with templates, such as cdk.out")
    folder = parser.parse_args().folder
    try:
        if not (types := types_in(folder)):
            sys.exit(f"{folder} holds no templates: make synth CONFIG=…")
        for policy in policies(types):
            print(json.dumps(policy, indent=2))
    except MirrorlessError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
