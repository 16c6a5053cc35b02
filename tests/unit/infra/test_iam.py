"""The evaluator decides as AWS's documentation says that IAM does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.deployment import Deployment
from tests.support.assembly import Assembly
from tests.support.aws_actions import dynamodb_calls
from tests.support.iam import allowed, role_statements, statements_of

BOOKS = "arn:aws:dynamodb:us-west-2:111122223333:table/Books"


def allow(action: str | list[str], resource: str | list[str], **condition: Any) -> dict[str, Any]:
    return {
        "Effect": "Allow",
        "Action": action,
        "Resource": resource,
        **({"Condition": condition} if condition else {}),
    }


def test_what_is_not_allowed_is_denied() -> None:
    assert not allowed([], "dynamodb:Query", BOOKS)
    assert not allowed([allow("dynamodb:GetItem", BOOKS)], "dynamodb:Query", BOOKS)


def test_a_deny_wins_over_every_allow() -> None:
    """https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html."""
    deny = {"Effect": "Deny", "Action": "dynamodb:*", "Resource": "*"}

    assert not allowed([allow("*", "*"), deny], "dynamodb:Query", BOOKS)
    assert allowed([allow("*", "*"), deny], "s3:GetObject", "arn:aws:s3:::bucket/key")


@pytest.mark.parametrize("pattern", ["dynamodb:query", "DynamoDB:Query", "dynamodb:Q*", "dynamodb:?uery", "*"])
def test_actions_are_compared_without_case_and_with_wildcards(pattern: str) -> None:
    assert allowed([allow(pattern, BOOKS)], "dynamodb:Query", BOOKS)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (BOOKS, True),
        ("*", True),
        (BOOKS.replace("111122223333", "*"), True),
        (BOOKS.replace("Books", "Boo?s"), True),
        (f"{BOOKS}/index/*", False),
        (BOOKS.lower(), False),
        ("arn:aws:dynamodb:us-west-2:*", False),
        ("arn:aws:dynamodb:*:table/Books", False),
    ],
)
def test_resources_are_compared_with_case_and_piece_by_piece(pattern: str, expected: bool) -> None:  # noqa: FBT001 -- a row
    assert allowed([allow("dynamodb:Query", pattern)], "dynamodb:Query", BOOKS) is expected


def test_a_secret_without_its_letters_is_matched_by_exactly_six() -> None:
    """https://docs.aws.amazon.com/secretsmanager/latest/userguide/auth-and-access_iam-policies.html."""
    arn = "arn:aws:secretsmanager:us-east-1:111122223333:secret:name"
    statements = [allow("secretsmanager:GetSecretValue", f"{arn}-??????")]

    assert allowed(statements, "secretsmanager:GetSecretValue", f"{arn}-a1b2c3")
    assert not allowed(statements, "secretsmanager:GetSecretValue", f"{arn}-a1b2c34")
    assert not allowed(statements, "secretsmanager:GetSecretValue", arn)


@pytest.mark.parametrize(
    ("condition", "context", "expected"),
    [
        # Several values: any of them. Several keys: all of them.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-logic-multiple-context-keys-or-values.html
        ({"StringEquals": {"aws:PrincipalTag/role": ["audit", "security"]}}, {"aws:PrincipalTag/role": "audit"}, True),
        ({"StringEquals": {"k:A": "a", "k:B": "b"}}, {"k:A": "a", "k:B": "b"}, True),
        ({"StringEquals": {"k:A": "a", "k:B": "b"}}, {"k:A": "a"}, False),
        ({"StringEquals": {"k:A": "a"}, "StringLike": {"k:B": "b*"}}, {"k:A": "a", "k:B": "cc"}, False),
        # Names of keys have no case; values have.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition.html
        ({"StringEquals": {"aws:username": "john"}}, {"AWS:UserName": "john"}, True),
        ({"StringEquals": {"aws:username": "john"}}, {"aws:username": "John"}, False),
        # A key that is not there: no match, but for negations and IfExists.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
        ({"StringEquals": {"k:A": "a"}}, {}, False),
        ({"StringNotEquals": {"k:A": "a"}}, {}, True),
        ({"StringNotEquals": {"k:A": ["a", "b"]}}, {"k:A": "b"}, False),
        ({"StringEqualsIfExists": {"k:A": "a"}}, {}, True),
        ({"StringEqualsIfExists": {"k:A": "a"}}, {"k:A": "b"}, False),
        ({"Null": {"k:A": "true"}}, {}, True),
        ({"Null": {"k:A": "false"}}, {}, False),
        ({"Bool": {"aws:SecureTransport": "true"}}, {"aws:SecureTransport": "true"}, True),
        ({"StringLike": {"s3:prefix": ["home/*", ""]}}, {"s3:prefix": "home/x"}, True),
        # ARNs piece by piece; both operators alike.
        ({"ArnEquals": {"k:Arn": "arn:aws:lambda:*:1:function:f"}}, {"k:Arn": "arn:aws:lambda:x:1:function:f"}, True),
        ({"ArnLike": {"k:Arn": "arn:aws:lambda:*:function:f"}}, {"k:Arn": "arn:aws:lambda:x:1:function:f"}, False),
        # Keys with several values.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-single-vs-multi-valued-context-keys.html
        ({"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}}, {"aws:TagKeys": ["a"]}, True),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}}, {"aws:TagKeys": ["a", "c"]}, False),
        ({"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}}, {}, True),
        ({"ForAnyValue:StringEquals": {"aws:TagKeys": ["a", "b"]}}, {"aws:TagKeys": ["a", "c"]}, True),
        ({"ForAnyValue:StringEquals": {"aws:TagKeys": ["a", "b"]}}, {}, False),
    ],
)
def test_conditions_hold_as_documented(
    condition: dict[str, Any],
    context: dict[str, Any],
    expected: bool,  # noqa: FBT001 -- a row of the table
) -> None:
    assert allowed([allow("x:Do", "*", **condition)], "x:Do", BOOKS, context) is expected


@pytest.mark.parametrize(
    "statement",
    [
        {"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"},
        allow("x:Do", "*", IpAddress={"aws:SourceIp": "10.0.0.0/8"}),
        allow("x:Do", "arn:aws:s3:::bucket/${aws:username}"),
        allow("x:Do", "*", StringEquals={"aws:SourceIp": "several"}),
    ],
)
def test_what_is_unknown_is_not_guessed(statement: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError):
        allowed([statement], "x:Do", "arn:aws:s3:::bucket/me", {"aws:SourceIp": ["a", "b"]})


@pytest.mark.parametrize(
    ("operation", "body", "expected"),
    [
        ("Query", {"TableName": "runs"}, [("dynamodb:Query", "runs")]),
        ("PutItem", {"TableName": BOOKS}, [("dynamodb:PutItem", "Books")]),
        (
            "BatchGetItem",
            {"RequestItems": {"a": {}, "b": {}}},
            [("dynamodb:BatchGetItem", "a"), ("dynamodb:BatchGetItem", "b")],
        ),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Put": {"TableName": "a"}}, {"ConditionCheck": {"TableName": "b"}}]},
            [("dynamodb:PutItem", "a"), ("dynamodb:ConditionCheckItem", "b")],
        ),
    ],
)
def test_a_request_to_dynamodb_needs_these_actions(
    operation: str, body: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert dynamodb_calls(f"DynamoDB_20120810.{operation}", json.dumps(body)) == expected


def test_a_roles_statements_are_those_attached_to_it_in_its_own_stack(tmp_path: Path) -> None:
    def policy(role: str, action: str) -> dict[str, Any]:
        document = {"Statement": [allow(action, "*")]}
        return {"Type": "AWS::IAM::Policy", "Properties": {"Roles": [{"Ref": role}], "PolicyDocument": document}}

    inline = {"Policies": [{"PolicyDocument": {"Statement": [allow("x:Inline", "*")]}}]}
    function = {"FunctionName": "f", "Role": {"Fn::GetAtt": ["Role", "Arn"]}}
    resources = {
        "Role": {"Type": "AWS::IAM::Role", "Properties": inline},
        "Other": {"Type": "AWS::IAM::Role", "Properties": {"ManagedPolicyArns": ["arn:aws:iam::aws:policy/Any"]}},
        "Function": {"Type": "AWS::Lambda::Function", "Properties": function},
        "Mine": policy("Role", "x:Attached"),
        "Theirs": policy("Other", "x:Theirs"),
    }
    elsewhere = {"Role": {"Type": "AWS::IAM::Role"}, "Mine": policy("Role", "x:Elsewhere")}
    for stack, body in {"one": resources, "two": elsewhere}.items():
        (tmp_path / f"{stack}.template.json").write_text(json.dumps({"Resources": body}))
    assembly = Assembly(tmp_path, Deployment(configuration=None, settings=None, flows=()))  # type: ignore[arg-type]  # not read

    assert [each["Action"] for each in statements_of(assembly, "f")] == ["x:Inline", "x:Attached"]
    with pytest.raises(LookupError):
        statements_of(assembly, "g")
    with pytest.raises(NotImplementedError):
        role_statements(assembly, next(r for r in assembly.resources("AWS::IAM::Role") if r.id == "Other"))
