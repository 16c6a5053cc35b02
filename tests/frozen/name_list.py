"""Names of all test functions, by the syntax of the files: nothing is imported or collected."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent
KINDS = ("unit", "contract", "infra", "integration")

NAMES = FOLDER / "test_names.txt"
REPLACED = FOLDER / "replaced_tests.toml"


def names() -> set[str]:
    """Every test function's name, without its file and its parameters."""
    return {
        node.name
        for kind in KINDS
        for path in (TESTS / kind).rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def frozen() -> set[str]:
    """The names that were there."""
    return set(NAMES.read_text(encoding="utf-8").split())


def replaced() -> dict[str, str]:
    """By the name of a test that is gone: what holds the same now."""
    return {str(name): str(by) for name, by in tomllib.loads(REPLACED.read_text(encoding="utf-8")).items()}


def lost(now: set[str], before: set[str], replacements: dict[str, str]) -> list[str]:
    """Tests that have disappeared, without a replacement in the list."""
    return sorted(name for name in before - now if not replacements.get(name, "").strip())


def add_new() -> int:
    """Add the names of new tests to the list, and return how many there were; those that are gone stay."""
    before = frozen() if NAMES.exists() else set()
    every = before | names()
    NAMES.write_text("".join(f"{name}\n" for name in sorted(every)), encoding="utf-8")
    return len(every - before)
