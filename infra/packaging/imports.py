"""Modules that a function imports, at its head or later, read from the sources without running them.

An import inside a function counts like one at the head of a file: it is only later. What stands under
`if TYPE_CHECKING:` never happens. What cannot be told from the sources, an import by a computed name, is refused.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.packaging.wheels import BuildError

_DYNAMIC = frozenset({"__import__", "import_module"})
_GUARDS = frozenset({"ImportError", "ModuleNotFoundError"})


@dataclass(frozen=True, slots=True)
class Imports:
    """What one file reaches.

    Attributes:
        files: the files of the package, in order.
        required: top-level names that come from elsewhere and not from Python itself, with the module that wants each.
        optional: such names whose absence is caught.
    """

    files: tuple[Path, ...]
    required: Mapping[str, str]
    optional: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Import:
    name: str
    """Dotted; of `from a import b` both `a` and `a.b`."""
    certain: bool
    """Whether it must be a module: the `b` of `from a import b` may be anything."""
    guarded: bool


def trace(entry: Path, package: Path) -> Imports:
    """Follow the imports of a file through a package.

    Args:
        entry: the file to begin with; it is no part of the package.
        package: the package's folder.

    Raises:
        BuildError: a module of the package is not there, or a name is computed.
    """
    waiting, seen = [(entry.stem, entry)], dict[str, Path]()
    required, optional = dict[str, str](), set[str]()
    while waiting:
        module, file = waiting.pop()
        for each in _imports(module, file):
            top = each.name.partition(".")[0]
            if top == package.name:
                for name in _with_parents(each.name):
                    found = _file_of(name, package)
                    if found is None and (each.certain or name != each.name):
                        raise BuildError(f"imports {name}, which is not there", where=module, hint=f"see {file}")
                    if found is not None and name not in seen:
                        seen[name] = found
                        waiting.append((name, found))
            elif top not in sys.stdlib_module_names:
                if each.guarded:
                    optional.add(top)
                else:
                    required.setdefault(top, module)
    return Imports(tuple(sorted(seen.values())), dict(sorted(required.items())), frozenset(optional))


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: length + 1]) for length in range(len(parts)))


def _file_of(name: str, package: Path) -> Path | None:
    path = package.parent.joinpath(*name.split("."))
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found if found.is_file() else None


def _imports(module: str, file: Path) -> Iterator[_Import]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    yield from _below(ast.parse(file.read_bytes(), str(file)), package, module, guarded=False)


def _below(node: ast.AST, package: str, module: str, *, guarded: bool) -> Iterator[_Import]:
    match node:
        case ast.Import(names=names):
            yield from (_Import(alias.name, certain=True, guarded=guarded) for alias in names)
        case ast.ImportFrom(module=name, names=names, level=level):
            parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            source = ".".join([*parents, *([name] if name else [])])
            yield _Import(source, certain=True, guarded=guarded)
            yield from (_Import(f"{source}.{alias.name}", certain=False, guarded=guarded) for alias in names)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=others):
            for other in others:
                yield from _below(other, package, module, guarded=guarded)
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
            caught = guarded or any(_names(handler.type) & _GUARDS for handler in handlers)
            for attempted in body:
                yield from _below(attempted, package, module, guarded=caught)
            for rest in (*handlers, *orelse, *finalbody):
                yield from _below(rest, package, module, guarded=guarded)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _DYNAMIC:
            hint = "write a plain import statement, inside a function if it is to be late"
            raise BuildError(f"line {node.lineno} imports by a computed name", where=module, hint=hint)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _below(child, package, module, guarded=guarded)


def _names(expression: ast.expr | None) -> frozenset[str]:
    """The names in an `except …`."""
    return frozenset(node.id for node in ast.walk(expression) if isinstance(node, ast.Name)) if expression else _GUARDS
