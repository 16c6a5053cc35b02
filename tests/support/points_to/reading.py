"""What do statements bind?"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tests.support.points_to.calling import Given
from tests.support.points_to.expressions import Expressions, is_none, scope_of
from tests.support.points_to.program import local_names, only_for_types
from tests.support.points_to.recording import KEYS
from tests.support.points_to.values import (
    Class,
    Container,
    Context,
    External,
    Function,
    Instance,
    Module,
    Text,
    Value,
    Values,
)


class Reader(Expressions):
    """Looks at bodies, statement by statement; every branch is taken."""

    def enter(self, module: str, function: str) -> None:
        """Let somebody call a function of a module with arguments that nobody knows, and find out what follows."""
        context = self.module(module)
        self.solver.settle()
        for each in self.solver.read(context, function):
            if isinstance(each, Function):
                self.caller.function(each, Given(unseen=True))
        self.solver.settle()

    def look(self, context: Context) -> None:
        """See `Objects.look`."""
        node = context.node
        if isinstance(node, ast.Lambda):
            self.solver.add(context, "#return", self.value(node.body, context))
            return
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                self.solver.add(context, "#bases", self.value(base, context.scope or context))
        self._body(node.body, context)

    def _body(self, statements: Iterable[ast.stmt], context: Context) -> None:
        for each in statements:
            self._statement(each, context)

    def _statement(self, node: ast.stmt, context: Context) -> None:
        match node:
            case ast.FunctionDef():
                self.defaults(node, context)
                self._bind(node.name, frozenset({Function(node, scope_of(context))}), context)
            case ast.ClassDef():
                body = self.solver.context(node, context.module, scope=scope_of(context))
                self._bind(node.name, frozenset({Class(body)}), context)
            case ast.Import() | ast.ImportFrom():
                self._import(node, context)
            case ast.Return(value=ast.expr() as value):
                self.solver.add(context, "#return", self.value(value, context))
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assignment(node, context)
            case _:
                self._blocks(node, context)

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, context: Context) -> None:
        if node.value is None:
            return
        if isinstance(node, ast.AugAssign):
            self._add_to(node.target, node.value, context)
            return
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.assign(target, self.value(node.value, context), context, node.value)

    def _add_to(self, target: ast.expr, value: ast.expr, context: Context) -> None:
        added = self.value(value, context)
        grown = [each for each in self.value(target, context) if isinstance(each, Container)]
        for into in grown:
            for each in added:
                if isinstance(each, Container):
                    self.pour(each, into)
        kept = [each for each in added if not (grown and isinstance(each, Container))]
        self.assign(target, frozenset(kept), context, value)

    def _blocks(self, node: ast.stmt, context: Context) -> None:
        """What has statements in it, or nothing but expressions."""
        match node:
            case ast.If() if only_for_types(node) or is_none(node.test, context):
                return self._body(node.orelse, context)
            case ast.For(target=target, iter=over):
                self.assign(target, self.contents(self.value(over, context)), context)
            case ast.With(items=items):
                for item in items:
                    self._enter(item, context)
            case ast.Match(subject=subject, cases=cases):
                self._match(self.value(subject, context), cases, context)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child, context)
        for inside in ("body", "orelse", "finalbody"):
            self._body(getattr(node, inside, []), context)
        for handler in getattr(node, "handlers", []):
            self._body(handler.body, context)
        return None

    def _enter(self, item: ast.withitem, context: Context) -> None:
        managers = self.value(item.context_expr, context)
        entered = set(managers | self.contents(managers))
        for each in managers:
            entered |= self.caller.method(each, "__enter__", Given(), item.context_expr, context)
            self.caller.method(each, "__exit__", Given(), item.context_expr, context)
        if item.optional_vars:
            self.assign(item.optional_vars, frozenset(entered), context)

    def _match(self, subject: Values, cases: list[ast.match_case], context: Context) -> None:
        for case in cases:
            for pattern in ast.walk(case.pattern):
                name = getattr(pattern, "name", None)
                if isinstance(pattern, ast.MatchAs | ast.MatchStar) and name:
                    self.solver.add(context, name, subject | self.contents(subject))
            if case.guard:
                self.value(case.guard, context)
            self._body(case.body, context)

    def _import(self, node: ast.Import | ast.ImportFrom, context: Context) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                value = Module(name) if self.program.knows(name) else External(name)
                self.solver.add(context, alias.asname or name, {value}, whole=True)
                if alias.name in self.program.modules:
                    self.module(alias.name)
            return
        module = node.module or ""
        for alias in node.names:
            ours = self.program.knows(module)
            found = self.of_module(module, alias.name) if ours else frozenset({External(f"{module}.{alias.name}")})
            self.solver.add(context, alias.asname or alias.name, found, whole=True)

    def defaults(self, node: ast.FunctionDef | ast.Lambda, context: Context) -> None:
        """See `Expressions.defaults`: they stand in cells of the function, for a call without the argument."""
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        given = positional[len(positional) - len(arguments.defaults) :]
        pairs = [
            *zip(given, arguments.defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for parameter, default in pairs:
            if default is not None:
                self.solver.add((node, scope_of(context)), parameter.arg, self.value(default, context))

    def assign(self, target: ast.expr, values: Values, context: Context, source: ast.expr | None = None) -> None:
        """See `Expressions.assign`."""
        match target:
            case ast.Name(id=name):
                self._bind(name, values, context)
            case ast.Attribute(value=owner, attr=name):
                for each in self.value(owner, context):
                    if isinstance(each, Instance):
                        self.solver.add(each, name, values)
            case ast.Subscript(value=owner, slice=key):
                keys = self.value(key, context)
                for each in self.value(owner, context):
                    if isinstance(each, Container):
                        self.put(each, keys, values)
            case ast.Starred(value=inner):
                self.assign(inner, values, context)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                self._unpack(parts, values, context, source)

    def _unpack(self, parts: list[ast.expr], values: Values, context: Context, source: ast.expr | None) -> None:
        sources = source.elts if isinstance(source, ast.Tuple) and len(source.elts) == len(parts) else None
        for index, part in enumerate(parts):
            if sources:
                self.assign(part, self.value(sources[index], context), context, sources[index])
            else:
                self.assign(part, self._at(values, index), context)

    def _at(self, values: Values, index: int) -> Values:
        """What stands at a place of a tuple; where it is no tuple, the value itself or anything in it."""
        found: set[Value] = set()
        for each in values:
            key = Text(f"#{index}")
            if isinstance(each, Container) and key in self.solver.read(each, KEYS):
                found |= self.solver.read(each, key)
            else:
                found |= {each} | self.content(each)
        return frozenset(found)

    def _bind(self, name: str, values: Values, context: Context) -> None:
        """Into the nearest body that has the name; `global` and `nonlocal` make that another one."""
        owner = context
        while name not in local_names(owner.node) and owner.scope is not None:
            owner = owner.scope
        self.solver.add(owner, name, values)
