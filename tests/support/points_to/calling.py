"""What does a call give, and to whom? Ours are looked at; what is not ours hands on what it is given."""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.points_to.program import none_unless_given, parameters
from tests.support.points_to.recording import BEHIND, REST, recorded
from tests.support.points_to.values import (
    NOTHING,
    Class,
    Client,
    Container,
    ContainerMethod,
    Context,
    External,
    Function,
    Instance,
    Module,
    Operation,
    Pages,
    Super,
    Text,
    Value,
    Values,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.points_to.objects import Objects

PLAIN = {"isinstance", "issubclass", "len", "str", "int", "float", "bool", "repr", "print", "hasattr", "hash", "id"}
"""Builtins that hand nothing on."""

PAGINATOR = "get_paginator"
"""A client's method that is no operation: what it gives asks for page after page of one."""

HANDS_ON = {
    "builtins",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "functools",
    "heapq",
    "itertools",
    "operator",
    "pydantic",
    "typing",
}
"""What gives back what it is given, or what that holds. Anything else not ours gives back only what it makes of ours:
the answers of our functions, which it may call, and instances of our classes."""


@dataclass
class Given:
    """The arguments of a call."""

    positional: list[Values] = field(default_factory=list)
    keywords: dict[str, Values] = field(default_factory=dict)
    rest: Values = NOTHING
    """What may be any argument."""
    unseen: bool = False
    """Whether there may be more: from `*args`, or from whom we do not know."""

    def everything(self) -> Values:
        """Whatever is given."""
        return self.rest.union(*self.positional, *self.keywords.values())


class Caller:
    """Calls, as one reader sees them."""

    def __init__(self, reader: Objects) -> None:
        self._reader = reader
        self._solver = reader.solver

    def call(self, targets: Values, given: Given, site: ast.AST, context: Context) -> Values:
        """What a call of one of these may give."""
        if not targets:
            unknown = site.func.attr if isinstance(site, ast.Call) and isinstance(site.func, ast.Attribute) else ""
            return self._external(unknown, given, site, context)
        found: set[Value] = set()
        for target in targets:
            match target:
                case Function():
                    found |= self.function(target, given, site)
                case Class():
                    found |= self._construct(target, given, site)
                case Instance():
                    found |= self.method(target, "__call__", given, site, context)
                case ContainerMethod(of=container, name=name):
                    found |= self._container_method(container, name, given, site)
                case Operation(service=service, method=method) if method == PAGINATOR:
                    named = given.positional[0] if given.positional else NOTHING
                    found |= {Pages(service, each.text) for each in named if isinstance(each, Text)}
                case Operation(service=service, method=method):
                    self._record(service, method, given.keywords, site, context)
                case External(path=path):
                    found |= self._external(path, given, site, context)
                case _:
                    pass
        return frozenset(found)

    def method(self, value: Value, name: str, given: Given, site: ast.AST, context: Context) -> Values:
        """What a method gives; nothing where the value has none of the name."""
        methods = self._reader.attribute(value, name)
        return self.call(methods, given, site, context) if methods else NOTHING

    def function(self, function: Function, given: Given, site: ast.AST | None = None) -> Values:
        """Look at a function of ours with these arguments, once for each operation among them."""
        names, bound, missing = self._bind(function, given)
        operations = {
            name: sorted((each for each in values if isinstance(each, Operation)), key=str)
            for name, values in bound.items()
        }
        split = {name: each for name, each in operations.items() if each}
        found: set[Value] = set()
        for chosen in itertools.product(*split.values()):
            ours = dict(zip(split, chosen, strict=True))
            inside = self._solver.context(
                function.node,
                function.scope.module,
                scope=function.scope,
                receiver=function.receiver,
                given=(tuple(sorted(ours.items())), site),
                missing=missing,
            )
            for name, values in bound.items():
                kept = (
                    values if name not in ours else {v for v in values if not isinstance(v, Operation)} | {ours[name]}
                )
                self._solver.add(inside, name, kept)
            self._catch(function.node.args, names, given, inside)
            found |= self._solver.read(inside, "#return")
        return frozenset(found)

    def _bind(self, function: Function, given: Given) -> tuple[list[str], dict[str, Values], frozenset[str]]:
        """The names of the positional parameters; values by parameter, but for `*` and `**`; what is surely None."""
        arguments = function.node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        positional = ([frozenset({function.receiver})] if function.receiver else []) + given.positional
        bound: dict[str, Values] = dict(zip(names, positional, strict=False))
        missing = set()
        for name in (*names, *(each.arg for each in arguments.kwonlyargs)):
            if name not in bound and name not in given.keywords and not given.unseen:
                missing.add(name)
            values = bound.get(name, NOTHING) | given.keywords.get(name, NOTHING)
            if not function.receiver or name != names[0]:
                values |= given.rest
            bound[name] = values or self._solver.read((function.node, function.scope), name)  # its default
        return names, bound, none_unless_given(function.node) & missing

    def _catch(self, arguments: ast.arguments, names: list[str], given: Given, inside: Context) -> None:
        extra = given.positional[max(0, len(names) - (1 if inside.receiver else 0)) :]
        if arguments.vararg:
            caught = Container(arguments.vararg, inside)
            self._solver.add(caught, REST, given.rest.union(*extra))
            self._solver.add(inside, arguments.vararg.arg, {caught})
        if arguments.kwarg:
            caught = Container(arguments.kwarg, inside)
            known = {each.arg for each in parameters(arguments)}
            for name, values in given.keywords.items():
                if name not in known:
                    self._reader.put(caught, frozenset({Text(name)}), values)
            self._solver.add(inside, arguments.kwarg.arg, {caught})

    def _construct(self, of: Class, given: Given, site: ast.AST) -> Values:
        if of.node in self._reader.plain:
            return NOTHING
        made = Instance(of, site)
        initialisers = self._reader.attribute(made, "__init__")
        if initialisers:
            for each in initialisers:
                if isinstance(each, Function):
                    self.function(each, given)
            return frozenset({made})
        for name, values in zip(self._reader.fields(of), given.positional, strict=False):
            self._solver.add(made, name, values)
        for name, values in given.keywords.items():
            self._solver.add(made, name, values)
        for each in self._reader.attribute(made, "__post_init__"):
            if isinstance(each, Function):
                self.function(each, Given())
        return frozenset({made})

    def _container_method(self, container: Container, name: str, given: Given, site: ast.AST) -> Values:
        if name in {"append", "add", "extend", "update", "insert", "setdefault", "put", "appendleft", "put_nowait"}:
            for value in given.everything():
                if isinstance(value, Container):
                    self._reader.pour(value, container)
            self._solver.add(container, REST, given.everything())
            for key, values in given.keywords.items():
                self._reader.put(container, frozenset({Text(key)}), values)
        return self._hand_on("", given, site) | {container} | self._reader.content(container)

    def _external(self, path: str, given: Given, site: ast.AST, context: Context) -> Values:
        name = path.rpartition(".")[2]
        if path == "builtins.super" and isinstance(context.receiver, Class | Instance):
            return self._super(context)
        if name in {"client", "create_client"}:
            services = given.positional[0] if given.positional else NOTHING
            return frozenset(Client(each.text) for each in services if isinstance(each, Text))
        if path == "importlib.import_module":
            named = {each.text for each in given.everything() if isinstance(each, Text)}
            return frozenset(Module(each) for each in named if self._reader.program.knows(each))
        if path in BEHIND:
            service, method, keywords = BEHIND[path]
            self._record(service, method, dict.fromkeys(keywords, NOTHING), site, context)
        if name == "replace" and given.positional:
            for made in given.positional[0]:
                for each, values in given.keywords.items():
                    self._solver.add(made, each, values)
        if path.startswith("builtins.") and name in PLAIN:
            return NOTHING
        return self._hand_on(path, given, site)

    def _super(self, context: Context) -> Values:
        """`super()` with no arguments: the class is the one that the method is written in."""
        receiver = context.receiver
        of = receiver.of if isinstance(receiver, Instance) else receiver
        if receiver is None or not isinstance(of, Class):
            return NOTHING
        written = (each for each in self._reader.ancestry(of) if context.node in each.node.body)
        return frozenset(Super(receiver, each) for each in written)

    def _hand_on(self, path: str, given: Given, site: ast.AST) -> Values:
        held = set(given.everything())
        for value in given.everything():
            held |= self._reader.content(value)
        held = {each for each in held if not isinstance(each, Module) and self._reader.leads(each)}
        handed = set(held) if path.partition(".")[0] in HANDS_ON else set()
        for value in held:
            if isinstance(value, Function):
                handed |= self.function(value, Given(rest=frozenset(held - {value}), unseen=True), site)
            elif isinstance(value, Class):
                handed |= self._construct(value, Given(unseen=True), site)
        return frozenset(handed)

    def _record(
        self, service: str, method: str, keywords: Mapping[str, Values], site: ast.AST, context: Context
    ) -> None:
        call = recorded(self._reader, service, method, keywords, site=site, context=context)
        self._reader.calls[site, context] = call
