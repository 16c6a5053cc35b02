"""What may a variable hold? Only what leads to a call of AWS is told apart; numbers and the like are nothing."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import cast

Scoped = ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.Module
"""What has names of its own."""


class Context:
    """A body that is looked at: for one receiver, one call, inside one other body. Equal to nothing but itself."""

    def __init__(
        self, node: Scoped, module: str, scope: Context | None, receiver: Value | None, missing: frozenset[str]
    ) -> None:
        """Args: missing: parameters that are None, because the call leaves them out."""
        self.node, self.module, self.scope, self.receiver, self.missing = node, module, scope, receiver, missing

    def __repr__(self) -> str:
        return f"{self.module}:{getattr(self.node, 'name', type(self.node).__name__)}"


@dataclass(frozen=True, slots=True)
class Module:
    """A module of ours."""

    name: str


@dataclass(frozen=True, slots=True)
class External:
    """Something by its dotted path in what is not ours."""

    path: str


@dataclass(frozen=True, slots=True)
class Text:
    """A string; a table's name in it stands between ⟨ and ⟩."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """The name of one of a flow's tables, by what the table holds."""

    name: str


@dataclass(frozen=True, slots=True)
class Class:
    """A class of ours, by the context of its body."""

    body: Context

    @property
    def node(self) -> ast.ClassDef:
        """Its text."""
        return cast("ast.ClassDef", self.body.node)


@dataclass(frozen=True, slots=True)
class Instance:
    """What a class makes at one place in the text."""

    of: Class
    site: ast.AST


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, maybe bound."""

    node: ast.FunctionDef | ast.Lambda
    scope: Context
    receiver: Value | None = None


@dataclass(frozen=True, slots=True)
class Super:
    """`super()` in a method of a class."""

    receiver: Value
    of: Class


@dataclass(frozen=True, slots=True)
class Container:
    """A list, tuple, dict, set or generator, made at one place in one context."""

    site: ast.AST | str
    context: Context


@dataclass(frozen=True, slots=True)
class ContainerMethod:
    """Such as `append` of a list."""

    of: Container
    name: str


@dataclass(frozen=True, slots=True)
class Client:
    """A boto3 client."""

    service: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a client."""

    service: str
    method: str


@dataclass(frozen=True, slots=True)
class Pages:
    """A client's paginator of some operation: `paginate` asks for page after page."""

    service: str
    method: str


Value = (
    Module
    | External
    | Text
    | Table
    | Class
    | Instance
    | Function
    | Super
    | Container
    | ContainerMethod
    | Client
    | Operation
    | Pages
)
Values = frozenset[Value]
NOTHING: Values = frozenset()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of AWS in the text, as made in one context.

    Attributes:
        service: as boto3 names it, `dynamodb`.
        method: of the client, `batch_get_item`.
        keywords: every parameter that it may be given.
        tables: whose names may be given as `TableName` or as keys of `RequestItems`.
        statements: PartiQL that may be given.
        at: `module:line`.
    """

    service: str
    method: str
    keywords: frozenset[str]
    tables: frozenset[str]
    statements: frozenset[str]
    at: str
