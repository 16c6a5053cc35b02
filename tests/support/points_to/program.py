"""Which modules are ours, and which names are local to which body?"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from botocore import xform_name
from botocore.session import get_session

from tests.support.points_to.values import Scoped

NESTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


@dataclass(frozen=True)
class Program:
    """The text of our modules, by name."""

    modules: Mapping[str, ast.Module]

    @classmethod
    def of(cls, *roots: Path) -> Program:
        """Everything below some folders that are on the path: a module is called what it is imported as."""
        found = {}
        for root in roots:
            for path in sorted(root.rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[name] = ast.parse(path.read_text(), str(path))
        return cls(found)

    def knows(self, name: str) -> bool:
        """Whether a module, or a package without a file of its own, is ours."""
        return name in self.modules or any(each.startswith(f"{name}.") for each in self.modules)


def within(node: ast.AST) -> Iterator[ast.AST]:
    """Every node of a body, but for the bodies inside it; those are yielded, not entered."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, NESTED):
            yield from within(child)


@cache
def local_names(node: Scoped) -> frozenset[str]:
    """The names that a body binds; comprehensions count to the body around them."""
    found: set[str] = set()
    elsewhere: set[str] = set()
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        found |= {each.arg for each in parameters(node.args)}
    for each in within(node):
        match each:
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name.partition(".")[0] for alias in names}
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                elsewhere |= set(names)
    return frozenset(found - elsewhere)


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """Every parameter of a function."""
    catching = [each for each in (arguments.vararg, arguments.kwarg) if each]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *catching]


@cache
def none_unless_given(node: ast.FunctionDef | ast.Lambda) -> frozenset[str]:
    """The parameters that are None where a call leaves them out; none that the body binds anew."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    pairs = [
        *zip(with_default, arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    bound = {each.id for each in within(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    nothing = {each.arg for each, default in pairs if isinstance(default, ast.Constant) and default.value is None}
    return frozenset(nothing - bound)


def decorators(node: ast.AST) -> frozenset[str]:
    """The last words of a function's decorators."""
    found = set()
    for each in getattr(node, "decorator_list", []):
        target = each.func if isinstance(each, ast.Call) else each
        found.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return frozenset(found)


def only_for_types(node: ast.If) -> bool:
    """Whether a branch is never run: `if TYPE_CHECKING:`."""
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


SERVICES = ("dynamodb", "emr-serverless", "lambda", "s3", "secretsmanager", "ssm", "sts")
"""Whose operations are looked for."""


@cache
def operations(service: str) -> frozenset[str]:
    """The methods of a client, as boto3 names them."""
    return frozenset(xform_name(each) for each in get_session().get_service_model(service).operation_names)
