"""What does a call of AWS say of itself? Its parameters, and the tables that it names."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.support.points_to.values import NOTHING, Call, Container, Context, Table, Text, Values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.points_to.objects import Objects

REST, KEYS = "*", "#keys"
"""Cells of a container: what is at no known place, and its keys."""

BEHIND = {
    "aws_lambda_powertools.utilities.parameters.get_secret": ("secretsmanager", "get_secret_value", ("SecretId",))
}
"""Calls that libraries make for us: service, method, keywords. A test sees each of them do it."""


def recorded(
    reader: Objects, service: str, method: str, keywords: Mapping[str, Values], *, site: ast.AST, context: Context
) -> Call:
    """A call, as seen in one context."""
    tables = {each.name for each in keywords.get("TableName", NOTHING) if isinstance(each, Table)}
    for each in keywords.get("RequestItems", NOTHING):
        if isinstance(each, Container):
            tables |= {key.name for key in reader.solver.read(each, KEYS) if isinstance(key, Table)}
    given = NOTHING.union(*(keywords.get(part, NOTHING) for part in ("Statement", "Statements", "TransactStatements")))
    texts = {each.text for each in reader.deep(given) if isinstance(each, Text)}
    return Call(
        service=service,
        method=method,
        keywords=frozenset(keywords),
        tables=frozenset(tables),
        statements=frozenset(text for text in texts if "⟨" in text),
        at=f"{context.module}:{getattr(site, 'lineno', 0)}",
    )
