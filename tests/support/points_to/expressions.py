"""What may an expression be?"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Iterator
from typing import Any

from mirrorless.config.flow import TABLES
from tests.support.points_to.calling import PAGINATOR, Given
from tests.support.points_to.objects import Objects
from tests.support.points_to.program import local_names
from tests.support.points_to.recording import KEYS, REST
from tests.support.points_to.values import (
    NOTHING,
    Class,
    Container,
    Context,
    External,
    Function,
    Instance,
    Operation,
    Table,
    Text,
    Value,
    Values,
)

COMBINATIONS = 64
"""Texts that one f-string is told apart into at most."""


class Expressions(Objects):
    """A reader of expressions."""

    def assign(self, target: ast.expr, values: Values, context: Context, source: ast.expr | None = None) -> None:
        """Bind what stands left of an `=`; `source` is what stands right of it."""
        raise NotImplementedError

    def defaults(self, node: ast.FunctionDef | ast.Lambda, context: Context) -> None:
        """Keep the defaults of a function's parameters."""
        raise NotImplementedError

    def value(self, node: ast.AST, context: Context) -> Values:
        """What an expression may be."""
        reader = _READERS.get(type(node), "_parts")
        found: Values = getattr(self, reader)(node, context)
        return found

    def contents(self, values: Values) -> Values:
        """What iterating over any of these may give."""
        return NOTHING.union(*map(self.content, values))

    def _either(self, node: ast.IfExp, context: Context) -> Values:
        if is_none(node.test, context):
            return self.value(node.orelse, context)
        return self._parts(node, context)

    def _parts(self, node: ast.AST, context: Context) -> Values:
        """Any other expression may be any of its parts, but for a comparison, which is true or false."""
        values = [self.value(each, context) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return NOTHING if isinstance(node, ast.Compare) else NOTHING.union(*values)

    def _constant(self, node: ast.Constant, _: Context) -> Values:
        return frozenset({Text(node.value)}) if isinstance(node.value, str) else NOTHING

    def _name(self, node: ast.Name, context: Context) -> Values:
        owner: Context | None = context
        while owner is not None:
            if node.id in local_names(owner.node):
                return self.solver.read(owner, node.id)
            owner = owner.scope
        return frozenset({External(f"builtins.{node.id}")}) if hasattr(builtins, node.id) else NOTHING

    def _attribute(self, node: ast.Attribute, context: Context) -> Values:
        found = NOTHING.union(*(self.attribute(each, node.attr) for each in self.value(node.value, context)))
        if node.attr != PAGINATOR and any(isinstance(each, Operation) and each.method == node.attr for each in found):
            self.named.add(f"{context.module}:{node.lineno}")
        return found or (frozenset({Table(node.attr)}) if node.attr in TABLES else NOTHING)

    def _call(self, node: ast.Call, context: Context) -> Values:
        targets = self.value(node.func, context)
        given = Given()
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                given.rest |= self.contents(self.value(argument.value, context))
                given.unseen = True
            else:
                given.positional.append(self.value(argument, context))
        for keyword in node.keywords:
            values = self.value(keyword.value, context)
            if keyword.arg:
                given.keywords[keyword.arg] = given.keywords.get(keyword.arg, NOTHING) | values
                continue
            given.unseen = True
            for each in values:
                for key in self.solver.read(each, KEYS) if isinstance(each, Container) else ():
                    if isinstance(key, Text):
                        at = self.solver.read(each, key)
                        given.keywords[key.text] = given.keywords.get(key.text, NOTHING) | at
        return self.caller.call(targets, given, node, context)

    def _subscript(self, node: ast.Subscript, context: Context) -> Values:
        found: set[Value] = set()
        keys = self.value(node.slice, context)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            keys = frozenset({Text(f"#{node.slice.value}")})
        for owner in self.value(node.value, context):
            if isinstance(owner, Class | External):
                found.add(owner)  # `Cell[int]`
            elif isinstance(node.slice, ast.Slice):
                found.add(owner)
            elif isinstance(owner, Instance):
                found |= self.caller.method(owner, "__getitem__", Given(rest=keys), node, context)
            elif isinstance(owner, Container):
                known = keys & self.solver.read(owner, KEYS)
                found |= self.solver.read(owner, REST).union(*(self.solver.read(owner, key) for key in known))
                if not known:
                    found |= self.content(owner)
        return frozenset(found)

    def _joined(self, node: ast.JoinedStr, context: Context) -> Values:
        parts: list[list[str]] = []
        for each in node.values:
            if isinstance(each, ast.Constant):
                parts.append([str(each.value)])
            elif isinstance(each, ast.FormattedValue):
                parts.append(_texts(self.value(each.value, context)))
        return _table_texts(parts)

    def _binary(self, node: ast.BinOp, context: Context) -> Values:
        left, right = self.value(node.left, context), self.value(node.right, context)
        containers = [each for each in (*left, *right) if isinstance(each, Container)]
        if isinstance(node.op, ast.BitOr | ast.Add) and containers:
            joined = Container(node, context)
            for each in containers:
                self.pour(each, joined)
            return frozenset({joined})
        if isinstance(node.op, ast.Add):
            return _table_texts([_texts(left), _texts(right)])
        return left | right

    def _dict(self, node: ast.Dict, context: Context) -> Values:
        made = Container(node, context)
        for key, value in zip(node.keys, node.values, strict=True):
            values = self.value(value, context)
            if key is None:
                for each in values:
                    if isinstance(each, Container):
                        self.pour(each, made)
                continue
            keys = self.value(key, context)
            self.put(made, keys, values)
        return frozenset({made})

    def _display(self, node: ast.List | ast.Tuple | ast.Set, context: Context) -> Values:
        made = Container(node, context)
        for index, each in enumerate(node.elts):
            if isinstance(each, ast.Starred):
                self.solver.add(made, REST, self.contents(self.value(each.value, context)))
            elif isinstance(node, ast.Tuple):
                self.put(made, frozenset({Text(f"#{index}")}), self.value(each, context))
            else:
                self.solver.add(made, REST, self.value(each, context))
        return frozenset({made})

    def _comprehension(self, node: Any, context: Context) -> Values:
        made = Container(node, context)
        for each in node.generators:
            self.assign(each.target, self.contents(self.value(each.iter, context)), context)
            for condition in each.ifs:
                self.value(condition, context)
        if isinstance(node, ast.DictComp):
            self.solver.add(made, KEYS, self.value(node.key, context))
            self.solver.add(made, REST, self.value(node.value, context))
        else:
            self.solver.add(made, REST, self.value(node.elt, context))
        return frozenset({made})

    def _lambda(self, node: ast.Lambda, context: Context) -> Values:
        self.defaults(node, context)
        return frozenset({Function(node, scope_of(context))})

    def _named(self, node: ast.NamedExpr, context: Context) -> Values:
        values = self.value(node.value, context)
        self.assign(node.target, values, context, node.value)
        return values

    def _yield(self, node: ast.Yield, context: Context) -> Values:
        made = Container("yielded", context)
        if node.value:
            self.solver.add(made, REST, self.value(node.value, context))
        self.solver.add(context, "#return", {made})
        return NOTHING


_READERS = {
    ast.Name: "_name",
    ast.Constant: "_constant",
    ast.Attribute: "_attribute",
    ast.Call: "_call",
    ast.Subscript: "_subscript",
    ast.JoinedStr: "_joined",
    ast.BinOp: "_binary",
    ast.Dict: "_dict",
    ast.List: "_display",
    ast.Tuple: "_display",
    ast.Set: "_display",
    ast.ListComp: "_comprehension",
    ast.SetComp: "_comprehension",
    ast.GeneratorExp: "_comprehension",
    ast.DictComp: "_comprehension",
    ast.IfExp: "_either",
    ast.Lambda: "_lambda",
    ast.NamedExpr: "_named",
    ast.Yield: "_yield",
}


def scope_of(context: Context) -> Context:
    """Where a function's free names are looked up: a class's body is passed over."""
    while isinstance(context.node, ast.ClassDef) and context.scope is not None:
        context = context.scope
    return context


def is_none(test: ast.expr, context: Context) -> bool:
    """Whether a test asks for a parameter that is surely None here."""
    return isinstance(test, ast.Name) and test.id in context.missing


def _texts(values: Values) -> list[str]:
    found = [each.text for each in values if isinstance(each, Text)]
    found += [f"⟨{each.name}⟩" for each in values if isinstance(each, Table)]
    return sorted(found) or ["…"]


def _table_texts(parts: list[list[str]]) -> Values:
    """Every combination that names a table; other strings lead nowhere."""
    combinations: Iterator[tuple[str, ...]] = itertools.islice(itertools.product(*parts), COMBINATIONS)
    return frozenset(Text(text) for text in map("".join, combinations) if "⟨" in text)
