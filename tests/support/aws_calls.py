"""Which calls of AWS does each part make, and which IAM actions do they need? Derived from the code by `points_to`.

An action is called like its operation, but for PartiQL, whose statements have actions of their own
(https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazondynamodb.html).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_args

from botocore import xform_name
from botocore.session import get_session

from infra.iam import Part
from tests.support.assembly import REPOSITORY
from tests.support.iam import partiql
from tests.support.points_to.program import Program, operations
from tests.support.points_to.reading import Reader
from tests.support.points_to.values import Call

Entry = tuple[str, str]
"""A module and its function."""

OPERATOR: Entry = ("cli.main", "main")

FREE = {"sts:GetCallerIdentity"}
"""What needs no permission (https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html)."""

ACTIONS = {"s3:ListObjectsV2": "s3:ListBucket"}
"""Actions that are called otherwise than their operations
(https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html)."""

BY_LIBRARIES = {"mirrorless.adapters.archive.files"}
"""Modules with a file of our own making, which libraries read: who calls its methods is not in our text."""

Need = tuple[str, str]
"""An action, and the table that it is about; empty where it is about none."""


@cache
def program() -> Program:
    """Everything of ours that can call AWS when it is deployed, and the operator's command."""
    found = dict(Program.of(REPOSITORY / "shared", REPOSITORY / "functions").modules)
    for folder in ("spark", "cli"):  # the scripts too: a module `verify` would be taken for the text "verify"
        inside = Program.of(REPOSITORY / folder).modules
        found |= {f"{folder}.{name}" if name else folder: each for name, each in inside.items()}
    return Program(found)


def entries(part: Part) -> list[Entry]:
    """Where AWS enters a part's code."""
    if part == "jobs":
        return [(f"spark.{path.stem}", "main") for path in sorted((REPOSITORY / "spark").glob("*.py"))]
    return [(part, "handler")]


def functions() -> list[Part]:
    """The parts that are functions, each a file of its name."""
    return [part for part in get_args(Part) if (REPOSITORY / "functions" / f"{part}.py").exists()]


@cache
def reached_from(entry: Entry) -> Reader:
    """Everything that can follow from calling a function of ours.

    Raises:
        LookupError: there is no such function.
    """
    module, function = entry
    if module not in program().modules:
        raise LookupError(module)
    reader = Reader(program())
    reader.enter(module, function)
    return reader


def calls_from(*entries: Entry) -> frozenset[Call]:
    """Every call of AWS that can follow."""
    return frozenset(call for entry in entries for call in reached_from(entry).calls.values())


def calls_of(part: Part) -> frozenset[Call]:
    """Every call that a part makes."""
    return calls_from(*entries(part))


def needs(calls: Iterable[Call]) -> frozenset[Need]:
    """The actions that calls need, and on which tables."""
    return frozenset(need for call in calls for need in _needs(call) if need[0] not in FREE)


def problems(call: Call) -> list[str]:
    """What the service's own model has against a call."""
    shape = _model(call.service).operation_model(operation_name(call)).input_shape
    unknown = sorted(call.keywords - set(shape.members))
    missing = sorted(set(shape.required_members) - call.keywords)
    named = {"dynamodb": bool(call.tables or call.statements)}.get(call.service, True)
    return (
        [f"{call.at}: {call.method} knows no {each}" for each in unknown]
        + [f"{call.at}: {call.method} is not given {each}" for each in missing]
        + ([] if named else [f"{call.at}: {call.method} names no table of ours"])
    )


def operation_name(call: Call) -> str:
    """`batch_get_item` as the API has it: `BatchGetItem`."""
    return _names(call.service)[call.method]


def operations_in_text(services: Iterable[str]) -> frozenset[str]:
    """Where the text of our modules names an operation of one of these services: `module:line`."""
    methods = frozenset().union(*map(operations, services))
    return frozenset(
        f"{name}:{node.lineno}"
        for name, module in program().modules.items()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and node.attr in methods
        and not _is_pythons(node.value, module)
        and ast.unparse(node.value) != "botocore.session"  # EMR Serverless has a GetSession too
    )


def _is_pythons(node: ast.expr, module: ast.Module) -> bool:
    """Whether this is what a function of the standard library gives: `urlsplit(url)` has a `query` too."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _from_python(module)


@cache
def _from_python(module: ast.Module) -> frozenset[str]:
    return frozenset(
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in sys.stdlib_module_names
        for alias in node.names
    )


def clients_in_text() -> frozenset[str]:
    """The services for which the text of our modules makes clients."""
    making = (
        node
        for module in program().modules.values()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"client", "create_client", "resource"}
    )
    first = (call.args[0] for call in making if call.args)
    return frozenset(str(each.value) for each in first if isinstance(each, ast.Constant))


def _needs(call: Call) -> Iterator[Need]:
    for statement in call.statements:
        action, table = partiql(statement)
        yield f"dynamodb:{action}", table.strip("⟨⟩")
    if not call.statements:
        for table in call.tables or {""}:
            action = f"{call.service}:{operation_name(call)}"
            yield ACTIONS.get(action, action), table


@cache
def _names(service: str) -> Mapping[str, str]:
    return {xform_name(each): each for each in _model(service).operation_names}


@cache
def _model(service: str) -> Any:
    return get_session().get_service_model(service)
