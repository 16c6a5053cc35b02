"""Names and docstrings: one meaning for each public class name, and statements at the head of each module."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("shared", "functions", "spark", "cli", "lab", "infra")
MODULES = sorted(
    path for folder in (*PRODUCT, "tests") for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts
)


def public_names(text: str) -> set[str]:
    """The public classes of a module, and its type aliases. Each module's tree would take seconds."""
    classes = re.findall(r"^class ([A-Za-z]\w*)", text, re.MULTILINE)
    assigned = re.findall(r"^([A-Z]\w*) = ", text, re.MULTILINE)
    return {*classes, *(name for name in assigned if not name.isupper())}


def test_no_public_class_name_exists_twice() -> None:
    where = defaultdict(list)
    for path in MODULES:
        if path.is_relative_to(ROOT / "tests"):
            continue
        for name in public_names(path.read_text()):
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
