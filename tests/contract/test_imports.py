"""The walls of the house: what may import what, and which libraries mypy follows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from infra.packaging.bundle import _NOT_OF_FUNCTIONS

ROOT = Path(__file__).parent.parent.parent

AS_IN_A_BUNDLE = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(f"{each}.") for each in sys.argv[2].split()):
            raise ImportError(f"{name} is in no function's bundle")

sys.meta_path.insert(0, Wall())
try:
    __import__(sys.argv[1])
except ImportError:
    raise
except Exception as settings:
    print(f"imported, and it lacks its settings: {settings}")
"""


@pytest.mark.parametrize("function", sorted(path.stem for path in (ROOT / "functions").glob("*.py")))
def test_a_function_imports_nothing_that_its_bundle_lacks(function: str) -> None:
    left_out = " ".join(f"mirrorless.{each.replace('/', '.')}" for each in _NOT_OF_FUNCTIONS)
    left_out += " cryptography mirrorless.transforms.transform"  # of flows with rules alone
    imported = subprocess.run(
        [sys.executable, "-c", AS_IN_A_BUNDLE, function, left_out],
        env={"PYTHONPATH": f"{ROOT / 'functions'}:{ROOT / 'shared'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert imported.returncode == 0, imported.stderr


CDK = Path(str(next(iter(find_spec("aws_cdk").submodule_search_locations or []))))  # type: ignore[union-attr]  # it is there
OVERRIDES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
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
        for path in (ROOT / folder).rglob("*.py"):
            if "node_modules" in path.parts or "aws_cdk" not in (text := path.read_text()):
                continue  # parsing them all takes seconds
            for node in ast.walk(ast.parse(text)):
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
    assert inherited <= FOLLOWED


COORDINATORS = "shared/mirrorless/adapters/kafka/coordinators.py"
TO_COORDINATORS = {
    "describe_consumer_groups",
    "list_consumer_group_offsets",
    "alter_consumer_group_offsets",
    "delete_consumer_groups",
}
"""The client's calls to the coordinator of a group. One that times out by itself can abort the process."""


def test_one_module_makes_the_requests_to_coordinators_of_groups() -> None:
    folders = ("shared", "functions", "spark", "cli", "infra", "lab", "tests")
    callers: dict[str, set[str]] = {}
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        if any(f".{call}" in text for call in TO_COORDINATORS):  # in a folder of `make` there is more than our Python
            used = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
            if calls := used & TO_COORDINATORS:
                callers[str(path.relative_to(ROOT))] = calls

    assert callers == {COORDINATORS: TO_COORDINATORS}


def test_every_consumer_compares_checksums() -> None:
    """Librdkafka leaves that out by default, and a batch whose bytes have changed on a disk is read as good."""
    makers = re.compile(r"(?<![\w.\"])Consumer\(")
    made = {
        path.relative_to(ROOT): path.read_text()
        for package in ("shared", "cli", "spark", "functions")
        for path in (ROOT / package).rglob("*.py")
        if makers.search(path.read_text()) and "from confluent_kafka import" in path.read_text()
    }

    assert made.keys() == {Path("shared/mirrorless/adapters/kafka/log.py"), Path("cli/lab.py")}
    assert [path for path, text in made.items() if "consumer_config" not in text and "check.crcs" not in text] == []
    assert "check.crcs" in (ROOT / "lab" / "esm" / "poller.py").read_text(), "as Java's, which Lambda has"


def printing(path: Path) -> Iterator[str]:
    """What a module prints by itself: calls of `print`, consoles, and what is written to a standard stream."""
    written = re.compile(r"sys\.std(out|err)\.(write\w*|buffer)")
    for node in ast.walk(ast.parse(path.read_text())):
        if (isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "Console"}) or (
            isinstance(node, ast.Attribute) and written.fullmatch(ast.unparse(node))
        ):
            yield ast.unparse(node)


def test_one_module_of_the_command_prints() -> None:
    """It shows what a terminal would obey of a name from elsewhere, and completes commands."""
    assert {path.name for path in (ROOT / "cli").rglob("*.py") if list(printing(path))} == {"output.py"}


def test_no_other_program_prints_an_error_as_it_is() -> None:
    """A broker, AWS or a file may have chosen its words; a line of its own could be a metric to CloudWatch."""
    raw = []
    folders = ("shared", "functions", "spark", "infra", "lab")
    for path in (each for folder in folders for each in (ROOT / folder).rglob("*.py")):
        if "node_modules" in path.parts or "print(" not in (text := path.read_text()):
            continue
        for handler in ast.walk(ast.parse(text)):
            if isinstance(handler, ast.ExceptHandler) and handler.name:
                words = re.compile(rf"print\((?!visible|json\.dumps).*\b{handler.name}\b(?!!r)")
                raw += [f"{path.name}: {each[0]}" for each in words.finditer(ast.unparse(handler))]

    assert raw == []


def test_one_module_reads_yaml() -> None:
    """It bounds what aliases repeat. The soak reads its own file once more, which that module has let pass."""
    loaders = re.compile(r"\bYAML\(|import yaml\b|msgspec\.yaml|safe_load")
    folders = ("shared", "functions", "spark", "cli", "infra", "lab", "docs")
    found = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts and loaders.search(path.read_text())
    }

    assert found == {"shared/mirrorless/config/yaml_source.py", "lab/drills/soak_topic.py"}
