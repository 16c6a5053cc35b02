"""Which classes are plain values, whose instances lead to no call of AWS? They need not be followed.

By names, and on the safe side: a method leads if it mentions an operation of a client, or a name that leads. A class is
plain if none of its methods leads or calls what it is given, and if its fields hold nothing but plain values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tests.support.points_to.program import SERVICES, Program, local_names, operations, within

CLIENTS = {"client", "create_client", "get_secret"}
"""What makes a client, or has one."""

IMPLICIT = {"__init__", "__post_init__", "__call__", "__enter__", "__exit__", "__iter__", "__getitem__"}
"""Methods that are called without being named."""

JSON = {"Any", "object"}
OPEN = {"Callable", *JSON}
"""In the type of a field: it may hold anything."""


def plain_classes(program: Program) -> frozenset[ast.ClassDef]:
    """The plain classes of a program."""
    classes = [
        node for module in program.modules.values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)
    ]
    leading = _leading_names(program)
    aliases = _aliases(program)
    suspects = {node.name for node in classes if not _is_error(node) and _may_lead(node, leading, aliases)}
    while more := {
        node.name
        for node in classes
        if node.name not in suspects and not _is_error(node) and _types(node, aliases) & suspects
    }:
        suspects |= more
    return frozenset(node for node in classes if node.name not in suspects)


def _leading_names(program: Program) -> set[str]:
    """What may lead to an operation: `.name` of methods and properties, and `name` of functions and classes."""
    owners: list[tuple[str, frozenset[str]]] = []
    for module in program.modules.values():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                owners += [
                    (node.name if each.name in IMPLICIT else f".{each.name}", _mentioned(each)) for each in methods
                ]
                owners += [(f".{node.name}", _mentioned(each)) for each in methods if each.name in IMPLICIT]
            elif isinstance(node, ast.Module):
                functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                owners += [(prefix + each.name, _mentioned(each)) for each in functions for prefix in ("", ".")]
    leading = CLIENTS.union(f".{each}" for each in CLIENTS.union(*map(operations, SERVICES)))
    while more := {name for name, mentioned in owners if name not in leading and mentioned & leading}:
        leading |= more
    return leading


def _may_lead(node: ast.ClassDef, leading: set[str], aliases: Mapping[str, ast.expr]) -> bool:
    if {getattr(base, "id", "") for base in node.bases} & {"Protocol"} or _types(node, aliases) & OPEN:
        return True
    return any(
        bool(_mentioned(each) & leading) or _calls_what_it_is_given(each)
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    )


def _is_error(node: ast.ClassDef) -> bool:
    """Errors carry words; nobody asks them to do anything."""
    return any(getattr(base, "id", "").endswith(("Error", "Retriable", "Exception")) for base in node.bases)


def _aliases(program: Program) -> dict[str, ast.expr]:
    """What modules give a name to, types among them."""
    return {
        target.id: node.value
        for module in program.modules.values()
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _types(node: ast.ClassDef, aliases: Mapping[str, ast.expr]) -> set[str]:
    """Every name in the types of a class's fields, and its bases."""
    waiting = [each.annotation for each in node.body if isinstance(each, ast.AnnAssign)] + node.bases
    found: set[str] = set()
    while waiting:
        names = set(_in_type(waiting.pop())) - found
        found |= names
        waiting += [aliases[name] for name in names if name in aliases]
    return found


def _in_type(node: ast.AST) -> Iterator[str]:
    """The names in a type; a dictionary of anything is JSON."""
    if isinstance(node, ast.Name):
        yield node.id
    json = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in {"dict", "Mapping"}
    for child in ast.iter_child_nodes(node):
        for name in _in_type(child):
            if not (json and name in JSON):
                yield name


def _mentioned(node: ast.FunctionDef) -> frozenset[str]:
    """`name` where it is not local to the function, and `.name`."""
    local = {
        name for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.Lambda) for name in local_names(each)
    }
    return frozenset(_names(node, local))


def _names(node: ast.AST, local: set[str]) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id not in local:
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield f".{each.attr}"


def _calls_what_it_is_given(node: ast.FunctionDef) -> bool:
    given = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)} - {"cls"}
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in given & local_names(node)
        for each in within(node)
    )
