"""Names and docstrings: one meaning for each public class name, and statements at the head of each module."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("shared", "functions", "spark", "cli", "lab", "infra")
MODULES = sorted(
    path for folder in (*PRODUCT, "tests") for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts
)


def public_names(module: ast.Module) -> set[str]:
    """The public classes of a module, and its type aliases."""
    names = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper():
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def test_no_public_class_name_exists_twice() -> None:
    where = defaultdict(list)
    for path in MODULES:
        if path.is_relative_to(ROOT / "tests"):
            continue
        for name in public_names(ast.parse(path.read_text())):
            where[name].append(str(path.relative_to(ROOT)))

    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_docstrings_of_modules_and_classes_state() -> None:
    """A reader searches for what a thing is; a question is found by nobody."""
    asking = {
        str(path.relative_to(ROOT)): lines
        for path in MODULES
        if "?" in (text := path.read_text())  # parsing the others takes seconds
        if (lines := [line for line in first_lines(ast.parse(text)) if "?" in line])
    }

    assert asking == {}


def first_lines(module: ast.Module) -> list[str]:
    """The first paragraphs of the docstrings of a module and of its classes."""
    documented: list[ast.Module | ast.ClassDef] = [module]
    documented += (node for node in ast.walk(module) if isinstance(node, ast.ClassDef))
    return [(ast.get_docstring(node) or "").partition("\n\n")[0] for node in documented]
