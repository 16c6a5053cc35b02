"""Names: one meaning for each public class name, docstrings that state, and holders of what the soak alone runs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
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


FOLDER = ROOT / "tests" / "integration"


def test_what_only_the_soak_runs_is_held_by_tests_of_make_test() -> None:
    paths = [path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("test_*.py")]
    marked = [path for path in paths if "mark.soak" in (FOLDER / path).read_text()]
    left = {f"tests/integration/{path}::{test}" for path in marked for test in _left_to_the_soak(FOLDER / path)}
    marks = [(path, mark) for path in marked for mark in _marks(ast.parse((FOLDER / path).read_text()))]

    assert left
    for path, mark in marks:
        assert mark.args, f"{path}: a mark names no test that holds its claim in `make test`"
        for holder in map(ast.literal_eval, mark.args):
            file, _, name = holder.partition("::")
            assert name in _functions(ROOT / file), f"{path}: there is no {holder}"
            assert holder not in left, f"{path}: {holder} is left to `make soak` too"


def _left_to_the_soak(file: Path) -> Iterator[str]:
    """The tests of a file that are left whatever their parameters are; a mark may have a name in its file."""
    body = ast.parse(file.read_text()).body
    named = {
        ast.unparse(target)
        for node in body
        if isinstance(node, ast.Assign) and any(node.value is mark for mark in _marks(node))
        for target in node.targets
    }
    whole = any(
        ast.unparse(node.targets[0]) == "pytestmark"
        for node in body
        if isinstance(node, ast.Assign)
        if any(_marks(node))
    )
    for name, function in _functions(file).items():
        decorators = function.decorator_list
        if whole or any(
            ast.unparse(each) in named or any(mark is each for mark in _marks(each)) for each in decorators
        ):
            yield name


def _marks(tree: ast.AST) -> Iterator[ast.Call]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return (call for call in calls if ast.unparse(call.func) == "pytest.mark.soak")


@cache
def _functions(file: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
