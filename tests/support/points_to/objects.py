"""What has parts, and what are they? Modules, classes, instances and containers, and what a reader knows of each."""

from __future__ import annotations

import ast
from collections import OrderedDict, deque
from collections.abc import Iterable
from queue import Queue

from mirrorless.config.flow import TABLES
from tests.support.points_to.calling import PAGINATOR, Caller, Given
from tests.support.points_to.plain import plain_classes
from tests.support.points_to.program import Program, decorators, local_names, operations
from tests.support.points_to.recording import KEYS, REST
from tests.support.points_to.solver import Solver
from tests.support.points_to.values import (
    NOTHING,
    Call,
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
    Table,
    Text,
    Value,
    Values,
)

TABLES_CLASS = "Tables"
"""The class of the flow's settings whose fields are the names of tables."""

CONTAINER_METHODS = frozenset(name for each in (list, dict, set, deque, OrderedDict, Queue) for name in dir(each))


class Objects:
    """What a reader knows, and the calls of AWS that it has seen."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.plain = plain_classes(program)
        self.solver = Solver(self.look, self.leads)
        self.caller = Caller(self)
        self.calls: dict[tuple[ast.AST, Context], Call] = {}
        self.named: set[str] = set()
        """Where operations of clients are named, called there or handed on: `module:line`."""

    def look(self, context: Context) -> None:
        """Look at a context again."""
        raise NotImplementedError

    def module(self, name: str) -> Context:
        """A module's body, which will be looked at."""
        return self.solver.context(self.program.modules[name], name)

    def leads(self, value: Value) -> bool:
        """Whether a call of AWS may come of it. What is not ours is known by its import alone, and texts by a table."""
        if isinstance(value, Text):
            return "⟨" in value.text or self.program.knows(value.text)
        return not isinstance(value, External)

    def attribute(self, value: Value, name: str) -> Values:
        """What an attribute of a value may be."""
        match value:
            case Module(name=module):
                found = self.of_module(module, name)
            case External(path=path):
                found = frozenset({External(f"{path}.{name}")})
            case Client(service=service):
                found = frozenset({Operation(service, name)} if name in {*operations(service), PAGINATOR} else ())
            case Pages(service=service, method=method):
                found = frozenset({Operation(service, method)} if name == "paginate" else ())
            case Container():
                found = frozenset({ContainerMethod(value, name)} if name in CONTAINER_METHODS else ())
            case Instance():
                found = self._of_instance(value, name)
            case Super(receiver=receiver, of=of):
                found = self._inherited([each for each in self.ancestry(of) if each != of], name, receiver)
            case Class():
                found = self._inherited(self.ancestry(value), name, value)
            case _:
                found = NOTHING
        return found

    def _of_instance(self, value: Instance, name: str) -> Values:
        if name in TABLES and getattr(value.of.body.node, "name", "") == TABLES_CLASS:
            return frozenset({Table(name)})
        return self.solver.read(value, name) | self._inherited(self.ancestry(value.of), name, value)

    def ancestry(self, of: Class) -> list[Class]:
        """The class and those of ours that it inherits from, nearest first."""
        found = [of]
        for each in self.solver.read(of.body, "#bases"):
            if isinstance(each, Class):
                found += [base for base in self.ancestry(each) if base not in found]
        return found

    def fields(self, of: Class) -> list[str]:
        """The fields of a data class in the order of its arguments."""
        names: dict[str, None] = {}
        for each in reversed(self.ancestry(of)):
            for statement in each.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    names[statement.target.id] = None
        return list(names)

    def put(self, container: Container, keys: Values, values: Values) -> None:
        """Let a container hold values at keys; only texts and tables' names tell places apart."""
        self.solver.add(container, KEYS, keys, whole=True)
        places = [key for key in keys if isinstance(key, Text | Table)]
        for key in places:
            self.solver.add(container, key, values)
        if len(places) < len(keys) or not keys:
            self.solver.add(container, REST, values)

    def pour(self, source: Container, into: Container) -> None:
        """Let a container hold what another one holds, at the same keys."""
        if source == into:
            return
        self.solver.add(into, REST, self.solver.read(source, REST), whole=True)
        keys = self.solver.read(source, KEYS)
        self.solver.add(into, KEYS, keys, whole=True)
        for key in keys:
            if isinstance(key, Text | Table):
                self.solver.add(into, key, self.solver.read(source, key), whole=True)

    def content(self, value: Value) -> Values:
        """What iterating over a value may give: of a container its elements, its values and its keys."""
        if isinstance(value, Instance):
            iterators = self.caller.method(value, "__iter__", Given(), value.site, value.of.body)
            return NOTHING.union(*map(self.content, iterators))
        if not isinstance(value, Container):
            return NOTHING
        keys = self.solver.read(value, KEYS)
        at_keys = (self.solver.read(value, key) for key in keys if isinstance(key, Text | Table))
        return self.solver.read(value, REST).union(keys, *at_keys)

    def deep(self, values: Values) -> Values:
        """Everything that values hold, however deep."""
        found: set[Value] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in found:
                found.add(value)
                waiting += self.content(value) if isinstance(value, Container) else ()
        return frozenset(found)

    def of_module(self, module: str, name: str) -> Values:
        """What a name of a module of ours stands for; a module inside it will be looked at."""
        if self.program.knows(f"{module}.{name}"):
            inner = f"{module}.{name}"
            if inner in self.program.modules:
                self.module(inner)
            return frozenset({Module(inner)})
        return self.solver.read(self.module(module), name) if module in self.program.modules else NOTHING

    def _inherited(self, classes: Iterable[Class], name: str, receiver: Value) -> Values:
        """What the nearest class has under a name, bound to who asks."""
        for each in classes:
            if name in local_names(each.body.node):
                return NOTHING.union(*(self._bound(value, receiver) for value in self.solver.read(each.body, name)))
        return NOTHING

    def _bound(self, value: Value, receiver: Value) -> Values:
        if not isinstance(value, Function) or value.receiver is not None:
            return frozenset({value})
        kinds = decorators(value.node)
        if "classmethod" in kinds:
            of = receiver.of if isinstance(receiver, Instance) else receiver
            return frozenset({Function(value.node, value.scope, of)})
        if "staticmethod" in kinds or isinstance(receiver, Class):
            return frozenset({value})
        bound = Function(value.node, value.scope, receiver)
        if kinds & {"property", "cached_property"}:
            return self.caller.function(bound, Given())
        return frozenset({bound})
