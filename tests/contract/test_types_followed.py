"""mypy skips services of the CDK: none that the code imports, and none that gives a class to inherit from."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
CDK = Path(str(next(iter(find_spec("aws_cdk").submodule_search_locations or []))))  # type: ignore[union-attr]  # it is there
OVERRIDES = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
FOLLOWED = {
    module
    for each in OVERRIDES
    if each.get("follow_imports") == "normal"
    for module in each["module"]
    if "*" not in module
}


def imported() -> Iterator[str]:
    """The modules of the CDK that the code imports."""
    for folder in ("infra", "tests", "cli", "lab"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            if "node_modules" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "aws_cdk":
                    yield str(node.module)
                    yield from (f"aws_cdk.{each.name}" for each in node.names if (CDK / each.name).is_dir())


def bases(module: str) -> Iterator[str]:
    """The modules that classes of a module inherit from. They have dozens of megabytes, so they are not parsed."""
    text = (CDK.parent.joinpath(*module.split(".")) / "__init__.py").read_text()
    names = {alias: name for name, alias in re.findall(r"^    import (aws_cdk[\w.]*) as (\w+)$", text, re.MULTILINE)}
    for inherited in re.findall(r"^class \w+\((.*?)\):$", text, re.MULTILINE | re.DOTALL):
        yield from (names[alias] for alias in re.findall(r"(\w+)\.\w+", inherited) if alias in names)


def test_every_module_of_the_cdk_that_is_imported_is_followed() -> None:
    assert {"aws_cdk", "aws_cdk.aws_lambda"} <= set(imported()) <= FOLLOWED


def test_no_class_of_a_followed_module_inherits_from_what_is_skipped() -> None:
    inherited = {base for module in FOLLOWED for base in bases(module)}

    assert "aws_cdk.interfaces.aws_lambda" in inherited
    assert {base for base in inherited if not base.startswith("aws_cdk.interfaces")} <= FOLLOWED
