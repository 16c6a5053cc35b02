"""CloudFormation is given what the templates' resource types call, and a deployer need not be an administrator."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from infra.iam import execution_policy
from infra.iam.policies import MANAGED
from tests.support.assembly import EXAMPLES, Assembly


def test_every_resource_type_of_every_example_says_what_it_calls(assembled: Callable[[str], Assembly]) -> None:
    """A type without a word would be found by a deployment that stops half way."""
    types = {resource.type for example in EXAMPLES for resource in assembled(example).resources()}

    found = {type_: execution_policy.actions_of(type_) for type_ in types}

    assert {type_ for type_, actions in found.items() if not actions} <= {"AWS::CloudFormation::WaitConditionHandle"}
    for type_ in (each for each in types if each.startswith("AWS::")):
        service = type_.split("::")[1].lower().replace("emrserverless", "emr-serverless")
        assert any(each.startswith(f"{service}:") for each in found[type_]) or not found[type_], type_
    custom = [found[type_] for type_ in types if type_.startswith("Custom::")]
    assert custom == [{"lambda:InvokeFunction"}] * len(custom)


def test_each_policy_is_one_that_iam_takes_and_together_they_miss_nothing(
    assembled: Callable[[str], Assembly],
) -> None:
    types = execution_policy.types_in(assembled("active-active").folder)

    policies = list(execution_policy.policies(types))

    allowed = [action for policy in policies for action in policy["Statement"][0]["Action"]]
    assert allowed == execution_policy.actions(types)
    assert all(re.fullmatch(r"[a-z0-9-]+:[A-Za-z]+\*?", action) for action in allowed)
    assert all(len(json.dumps(policy, separators=(",", ":"))) <= 6_144 for policy in policies)
    assert len(policies) <= 10, "a role takes no more"
    assert {"dynamodb:CreateTable", "lambda:CreateEventSourceMapping", "iam:PassRole"} <= set(allowed)


def test_with_a_boundary_only_roles_that_have_it_are_given_rights(assembled: Callable[[str], Assembly]) -> None:
    folder = assembled("active-active").folder
    types = execution_policy.types_in(folder)

    bounded, *others = execution_policy.policies(types, boundary="ours")

    allow, deny = bounded["Statement"]
    assert {"iam:CreateRole", "iam:PutRolePolicy", "iam:AttachRolePolicy"} <= set(allow["Action"])
    assert allow["Condition"] == {"StringLike": {"iam:PermissionsBoundary": "arn:*:iam::*:policy/ours"}}
    assert "iam:CreatePolicyVersion" in deny["Action"]
    allowed = {action for policy in others for action in policy["Statement"][0]["Action"]}
    assert not allowed & {*allow["Action"], "iam:DeleteRolePermissionsBoundary"}
    everything = allowed | set(allow["Action"])
    assert everything == set(execution_policy.actions(types)) - {"iam:DeleteRolePermissionsBoundary"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_boundary_has_what_any_role_is_allowed_and_fits_into_a_policy(
    example: str, assembled: Callable[[str], Assembly]
) -> None:
    boundary = execution_policy.boundary_of(assembled(example).folder)

    (statement,) = boundary["Statement"]
    assert {"dynamodb:PutItem", "logs:PutLogEvents"} <= set(statement["Action"])
    assert "*" not in statement["Action"]
    assert len(json.dumps(boundary, separators=(",", ":"))) <= MANAGED


def test_an_action_that_a_pattern_covers_is_not_written_again() -> None:
    actions = execution_policy.actions({"AWS::DynamoDB::GlobalTable"})

    assert "dynamodb:Describe*" in actions
    assert "dynamodb:DescribeTable" not in actions


@pytest.mark.parametrize("type_", ["AWS::CDK::Metadata", "AWS::No::Such"])
def test_a_type_without_documented_actions_is_an_error(type_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_policy, "_WITHOUT_HANDLERS", {})

    with pytest.raises(execution_policy.UnknownType, match=rf"{type_}.*add them"):
        execution_policy.actions_of(type_)
