"""A small evaluator of the IAM policies in a template.

It covers what the templates use, and refuses anything else.
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from infra.guard.templates import Resource
from tests.support.assembly import Assembly

Statement = Mapping[str, Any]
Context = Mapping[str, str | Sequence[str]]

ELEMENTS = {"Sid", "Effect", "Action", "Resource", "Condition"}
SEGMENTS = 5
"""Colons that part an ARN; what follows the last of them is one piece."""


def allowed(statements: Iterable[Statement], action: str, resource: str, context: Context | None = None) -> bool:
    """Whether a role with these statements may do an action.

    Args:
        statements: of all its policies.
        action: as `dynamodb:Query`.
        resource: its ARN.
        context: condition keys with one value or, for those that can have more, a list.

    Raises:
        NotImplementedError: a statement has something that is not evaluated here.
    """
    keys = {key.lower(): value for key, value in (context or {}).items()}
    effects = {each["Effect"] for each in statements if _applies(each, action, resource, keys)}
    return effects == {"Allow"}


def statements_of(assembly: Assembly, function_name: str) -> list[Statement]:
    """The statements of a function's role, by the function's name.

    Raises:
        LookupError: there is no such function.
    """
    for function in assembly.resources("AWS::Lambda::Function"):
        if function.properties.get("FunctionName") == function_name:
            role = function.properties["Role"]["Fn::GetAtt"][0]
            return role_statements(assembly, Resource(function.stack, role, _body(assembly, function.stack, role)))
    raise LookupError(function_name)


def role_statements(assembly: Assembly, role: Resource) -> list[Statement]:
    """The statements of a role of a template: its own, and those of the policies that are attached to it there.

    Raises:
        NotImplementedError: it has managed policies, whose text no template has.
    """
    if role.properties.get("ManagedPolicyArns"):
        raise NotImplementedError(f"{role.stack} {role.id} has managed policies")
    attached = [
        policy.properties
        for policy in assembly.resources("AWS::IAM::Policy")
        if policy.stack == role.stack and {"Ref": role.id} in policy.properties.get("Roles", [])
    ]
    documents = [each["PolicyDocument"] for each in (*role.properties.get("Policies", []), *attached)]
    return [statement for document in documents for statement in document["Statement"]]


def many(value: Any) -> list[Any]:
    """IAM writes one of something without brackets."""
    return list(value) if isinstance(value, list | tuple) else [value]


def granted_anywhere(assembly: Assembly) -> Iterator[tuple[str, str, Any]]:
    """Where, which action and which resource, of every statement that allows something to a role."""
    for role in assembly.resources("AWS::IAM::Role"):
        for statement in role_statements(assembly, role):
            if statement["Effect"] == "Allow":
                for action in many(statement["Action"]):
                    yield from ((role.id, action, resource) for resource in many(statement["Resource"]))


@cache
def reference() -> dict[str, Any]:
    """What the Service Authorization Reference says, as cfn-lint ships it."""
    found: dict[str, Any] = json.loads(files("cfnlint.data.AdditionalSpecs").joinpath("Policies.json").read_text())
    return found


def listed(action: str) -> dict[str, Any]:
    service, _, name = action.partition(":")
    found: dict[str, Any] = reference()[service]["Actions"][name.lower()]
    return found


def _body(assembly: Assembly, stack: str, id_: str) -> Mapping[str, Any]:
    body: Mapping[str, Any] = assembly.templates[stack]["Resources"][id_]
    return body


def _applies(statement: Statement, action: str, resource: str, context: Context) -> bool:
    if unknown := set(statement) - ELEMENTS:
        raise NotImplementedError(f"{unknown} of a statement")
    return (
        any(_like(each.lower(), action.lower()) for each in many(statement["Action"]))
        and any(_arn_like(each, resource) for each in many(statement["Resource"]))
        and all(
            _holds(operator, many(values), context.get(key.lower()))
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def _holds(operator: str, wanted: Sequence[str], given: str | Sequence[str] | None) -> bool:
    """One condition: `wanted` are the policy's values, any of which may match; `given` is the request's."""
    quantifier, _, rest = operator.rpartition(":")
    name = rest.removesuffix("IfExists")
    if name == "Null":
        return all((given is None) == (each == "true") for each in wanted)
    if given is None or given == []:
        return rest.endswith("IfExists") or quantifier == "ForAllValues" or "Not" in name
    matches = _matching(name)
    each_holds = [any(matches(one, value) for one in wanted) != ("Not" in name) for value in many(given)]
    if quantifier == "ForAnyValue":
        return any(each_holds)
    if quantifier != "ForAllValues" and len(each_holds) > 1:
        raise NotImplementedError(f"{operator} on a key with several values")
    return all(each_holds)


def _matching(operator: str) -> Callable[[str, str], bool]:
    match operator.replace("Not", ""):
        case "StringEquals":
            return str.__eq__
        case "StringLike":
            return _like
        case "ArnLike" | "ArnEquals":
            return _arn_like
        case "Bool":
            return lambda wanted, given: str(wanted).lower() == given.lower()
    raise NotImplementedError(operator)


def _arn_like(pattern: Any, arn: str) -> bool:
    """Piece by piece: a wildcard does not reach across a colon of the first five."""
    if not isinstance(pattern, str):
        return False  # a reference to something of the same template: no ARN that a caller has
    if pattern == "*":
        return True
    ours, theirs = pattern.split(":", SEGMENTS), arn.split(":", SEGMENTS)
    return len(ours) == len(theirs) and all(map(_like, ours, theirs))


def _like(pattern: str, text: str) -> bool:
    return _expression(pattern).fullmatch(text) is not None


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    if "${" in pattern:
        raise NotImplementedError(f"a policy variable: {pattern}")
    return re.compile("".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in pattern), re.DOTALL)
