"""Policies for CloudFormation's execution role, derived from the templates type by type.

    python -m infra.iam.execution_policy cdk.out        prints policies, each small enough to be a managed one
    … cdk.out --boundary mirrorless-boundary            prints the roles' permissions boundary first

Rights end at the deployment's own names and paths. With a boundary, the execution role gives rights to roles that have
it and to no others, and does not change it. CloudFormation's registry has the actions that the handlers of each type
call, the Service Authorization Reference what an action is about; cfn-lint ships both. Types that the registry lacks
are written down here, with their source.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from cfnlint.schema import ResourceNotFoundError
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from infra.iam import FRAME, MANAGED, Right, characters
from infra.iam.statements import LISTS_CONNECTIONS
from mirrorless.config.cluster import partition_of
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

_USES_OF_KEYS = frozenset(
    f"kms:{action}"
    for action in ("CreateGrant", "Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey", "ListAliases", "RevokeGrant")
)
"""No template makes a key, and none changes one that the configuration names."""

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

_TABLES_ROLES = "iam::*:role/{}-tables-*"
_FUNCTIONS = "lambda:*:*:function:{}-*"

_OURS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "application-autoscaling": {},  # tables are paid by the request
    "cloudwatch": {"alarm": ("cloudwatch:*:*:alarm:{}-*",), "dashboard": ("cloudwatch::*:dashboard/{}-*",)},
    "dynamodb": {"table": ("dynamodb:*:*:table/{}-*",)},
    "emr-serverless": {"application": ("emr-serverless:*:*:/applications/*",)},  # ids are the service's own choice
    "events": {"rule-on-default-event-bus": ("events:*:*:rule/{}-*",)},
    "iam": {
        "role": ("iam::*:role/{}/*", "iam::*:role/{}-jobs-*", _TABLES_ROLES),
        "policy": ("iam::*:policy/{}/*",),
    },
    "lambda": {
        **dict.fromkeys(("function", "function alias", "function version"), (_FUNCTIONS,)),
        "eventsourcemapping": ("lambda:*:*:event-source-mapping:*",),  # of our functions, by a condition
    },
    "logs": dict.fromkeys(("log-group", "log-stream"), ("logs:*:*:log-group:/aws/*/{}-*",)),
    "s3": {"bucket": ("s3:::{}-*",), "object": ("s3:::{}-*/*",)},
    "scheduler": {
        "schedule-group": ("scheduler:*:*:schedule-group/{}", "scheduler:*:*:schedule-group/{}-*"),
        "schedule": ("scheduler:*:*:schedule/{}/*", "scheduler:*:*:schedule/{}-*/*"),
    },
    "sns": {"topic": ("sns:*:*:{}-*",)},
    "ssm": {"parameter": ("ssm:*:*:parameter/{}/*",)},
    "sts": {"role": (_TABLES_ROLES,)},
}
"""What resources of a deployment are called, by service and kind. An action of these services that is about none of
these kinds, such as users, is nothing that a deployment does."""

_BESIDE: Mapping[str, str] = {
    "iam:CreateServiceLinkedRole": "iam::*:role/aws-service-role/*",  # of DynamoDB's copies and of EMR, once
    "ssm:GetParameters": "ssm:*:*:parameter/cdk-bootstrap/*",  # the bootstrap version, which each template reads
    "s3:GetObject": "s3:::cdk-*-assets-*/*",  # templates, and code of functions and jobs
    "s3:GetObjectVersion": "s3:::cdk-*-assets-*/*",
}
"""What actions are about beside what is ours."""

_WHOLE = frozenset({"cloudwatch:PutCompositeAlarm", "cloudwatch:PutMetricData"})
"""CloudWatch takes no narrower permission for the former, and metrics are nobody's.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutCompositeAlarm.html"""

_HANDING = "iam:PassRole"  # to hand a role to the function or schedule that runs as it
_ALWAYS = (*_BESIDE, _HANDING)

_KEY = re.compile(r'(?<!\\)"(arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+)"')
"""The ARN of a key as a value of its own, and not in a text that is JSON itself."""


_WITHIN_CLUSTER = re.compile(r"(arn:[^:]+:kafka:[^:]*:[^:]*:)[^/]+/([^/]+/[^/]+).*")
"""The ARN of something in a cluster, whose name and id follow its kind."""

_OF_MAPPINGS = frozenset(f"lambda:{verb}EventSourceMapping" for verb in ("Create", "Delete", "Update"))

Conditions = Mapping[str, Mapping[str, str | tuple[str, ...]]]


class TooLong(MirrorlessError):
    """A policy is longer than IAM takes."""


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
    known = (action for action in named if action.partition(":")[0] not in _OTHER_SERVICES)
    return frozenset(action for action in known if not action.startswith("kms:") or action in _USES_OF_KEYS)


def actions(types: Iterable[str]) -> list[str]:
    """Every action that a deployment of these resource types needs, in order, without those that a pattern covers."""
    found = set(_ALWAYS).union(*(actions_of(type_) for type_ in types))
    wild = {action[:-1] for action in found if action.endswith("*")}
    return sorted(action for action in found if not any(action != f"{w}*" and action.startswith(w) for w in wild))


def policies(folder: Path, *, boundary: str = "") -> Iterator[dict[str, Any]]:
    """Policies that together allow to deploy what a folder has, each below IAM's limit.

    Args:
        folder: an assembly.
        boundary: name of that of all roles, if any.
    """
    others = [json.dumps(each.get("Properties")) for each in _resources(folder) if not _is_policy(each)]
    scope = _Scope.of(folder, {"kms": {key for text in others for key in _KEY.findall(text)}})
    wanted = [each for each in actions(types_in(folder)) if not boundary or each != _UNBINDING]
    wanted += [LISTS_CONNECTIONS] if any(":vpc-connection/" in text for text in others) else []
    part: list[Right] = []
    for right in scope.rights(wanted, boundary=boundary):
        if part and FRAME + sum(map(characters, [*part, right])) > MANAGED:
            yield _policy(part)
            part = []
        part.append(right)
    yield _policy(part)


def boundary_of(folder: Path) -> dict[str, Any]:
    """What the roles of every template in a folder may do at most: all that any of them is allowed, on what is ours.

    Raises:
        TooLong: IAM takes no policy of this length.
    """
    granted: set[str] = set()
    named: dict[str, set[str]] = {"kafka-cluster": set(), "kms": set(), "secretsmanager": set()}
    for statement in (each for resource in _resources(folder) for each in _statements(resource)):
        granted.update(called := _many(statement["Action"]))
        for service in {action.partition(":")[0] for action in called} & named.keys():
            named[service].update(_WITHIN_CLUSTER.sub(r"\1*/\2*", each) for each in _many(statement["Resource"]))
    policy = _policy(_Scope.of(folder, named).rights(sorted(granted)))
    if (length := len(json.dumps(policy, separators=(",", ":")))) > MANAGED:
        hint = "divide the flows among files, each with its own `deployment: {name: …}`"
        raise TooLong(f"the boundary has {length} characters, and IAM takes {MANAGED}", where=str(folder), hint=hint)
    return policy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """What actions may be about.

    Attributes:
        names: of the deployments.
        partitions: in which they are.
        named: ARNs by service, of services whose resources the configuration names.
    """

    names: tuple[str, ...]
    partitions: tuple[str, ...]
    named: Mapping[str, Iterable[str]]

    @classmethod
    def of(cls, folder: Path, named: Mapping[str, Iterable[str]]) -> _Scope:
        """The scope of an assembly's deployments: each has a state stack, which begins with its name."""
        artifacts: Mapping[str, Any] = json.loads((folder / "manifest.json").read_text())["artifacts"]
        regions = {
            id_: artifact["environment"].rpartition("/")[2]
            for id_, artifact in artifacts.items()
            if artifact["type"] == "aws:cloudformation:stack"
        }
        names = {id_.partition(state)[0] for id_, at in regions.items() if (state := f"-state-{at}") in id_}
        partitions = {partition_of(region) for region in regions.values()}
        return cls(names=tuple(sorted(names)), partitions=tuple(sorted(partitions)), named=named)

    def rights(self, wanted: Iterable[str], *, boundary: str = "") -> Iterator[Right]:
        """These actions on what is in scope, those on the same together. Args: boundary: as of `policies`."""
        together: dict[tuple[str, tuple[str, ...]], tuple[Conditions, list[str]]] = {}
        for action in wanted:
            conditions, about = self._conditions(action, boundary), self._about(action)
            if about:
                together.setdefault((repr(conditions), about), (conditions, []))[1].append(action)
        for (_, about), (conditions, found) in together.items():
            yield Right(actions=tuple(found), resources=about, conditions=conditions)
        for action in (each for each in wanted if each in _BESIDE):
            yield Right(actions=(action,), resources=self._arns(_BESIDE[action]))

    def _about(self, action: str) -> tuple[str, ...]:
        """What an action may be about: everything, where it is about nothing, or only describes."""
        service, _, name = action.partition(":")
        if name.startswith(("Describe", "List")) and service != "s3":  # which lists what people wrote
            return ("*",)
        if service in self.named:
            return tuple(sorted(self.named[service]))
        if service not in _OURS or action in _WHOLE:
            return ("*",)
        kinds = _kinds(service, name)
        if not kinds:
            return ("*",)
        patterns = [each for kind, those in _OURS[service].items() if kind in kinds for each in those]
        return self._arns(*dict.fromkeys(patterns))

    def _conditions(self, action: str, boundary: str) -> Conditions:
        if boundary and action in _BOUNDED:
            return {"ArnLike": {"iam:PermissionsBoundary": self._arns(f"iam::*:policy/{boundary}")}}
        if action == _HANDING:
            return {"StringEquals": {"iam:PassedToService": ("lambda.amazonaws.com", "scheduler.amazonaws.com")}}
        if action in _OF_MAPPINGS:
            return {"ArnLike": {"lambda:FunctionArn": self._arns(_FUNCTIONS)}}
        if action in {"kms:CreateGrant", "kms:RevokeGrant"}:
            return {"Null": {"kms:ViaService": "false"}}  # a service asks for it, in the role's name
        return {}

    def _arns(self, *patterns: str) -> tuple[str, ...]:
        every = [f"arn:{at}:{each.format(name)}" for at in self.partitions for each in patterns for name in self.names]
        return tuple(dict.fromkeys(every))


def _kinds(service: str, name: str) -> frozenset[str]:
    """The kinds of resources that an action is about; every one of ours where the reference does not know it."""
    found = _reference()[service]["Actions"].get(name.lower())
    return frozenset(_OURS[service] if found is None else map(str.lower, found.get("Resources", ())))


@cache
def _reference() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(files("cfnlint.data.AdditionalSpecs").joinpath("Policies.json").read_text())
    return found


def types_in(folder: Path) -> set[str]:
    """The resource types of every template in a folder."""
    return {resource["Type"] for resource in _resources(folder)}


def _resources(folder: Path) -> Iterator[Mapping[str, Any]]:
    for path in folder.glob("*.template.json"):
        yield from json.loads(path.read_text()).get("Resources", {}).values()


def _is_policy(resource: Mapping[str, Any]) -> bool:
    return str(resource["Type"]).startswith("AWS::IAM::")


def _statements(resource: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a role or a policy allows."""
    if _is_policy(resource):
        properties = resource["Properties"]
        holders = (properties, *properties.get("Policies", []))
        documents = [each["PolicyDocument"] for each in holders if "PolicyDocument" in each]
        yield from (each for document in documents for each in document["Statement"] if each["Effect"] == "Allow")


def _many(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _policy(rights: Iterable[Right]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [right.written() for right in rights]}


def main() -> None:
    """Print the policies of what was synthesized."""
    parser = argparse.ArgumentParser(prog="python -m infra.iam.execution_policy", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder with templates, such as cdk.out")
    parser.add_argument("--boundary", metavar="NAME", default="", help="of the policy that limits every role")
    given = parser.parse_args()
    folder = given.folder
    try:
        if not types_in(folder):
            sys.exit(f"{folder} holds no templates: make synth CONFIG=…")
        for policy in [*([boundary_of(folder)] if given.boundary else []), *policies(folder, boundary=given.boundary)]:
            print(json.dumps(policy, indent=2))
    except MirrorlessError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
