"""What a function reaches is read from the sources: late imports count, imports for types do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.packaging.imports import Imports, trace
from infra.packaging.wheels import BuildError


def traced(folder: Path, entry: str, **modules: str) -> Imports:
    """Trace an entry through a package `mirrorless` of these modules; `groups__sync` is `groups/sync.py`."""
    package = folder / "mirrorless"
    for name, text in {"__init__": "", **modules}.items():
        path = package.joinpath(*name.split("__", 1)) if name != "__init__" else package / name
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    file = folder / "forward.py"
    file.write_text(entry)
    return trace(file, package)


def names(found: Imports) -> list[str]:
    return [f"{path.parent.name}/{path.stem}" for path in found.files]


def test_an_import_inside_a_function_counts(tmp_path: Path) -> None:
    found = traced(tmp_path, "def handler():\n    from mirrorless.recovery import resolve\n", recovery="", other="")

    assert names(found) == ["mirrorless/__init__", "mirrorless/recovery"]


def test_a_module_that_is_imported_as_a_name_of_its_package_counts(tmp_path: Path) -> None:
    found = traced(tmp_path, "from mirrorless import steps, VERSION\n", steps="")

    assert names(found) == ["mirrorless/__init__", "mirrorless/steps"]


def test_a_package_comes_with_its_own_imports(tmp_path: Path) -> None:
    (tmp_path / "mirrorless" / "groups").mkdir(parents=True)
    (tmp_path / "mirrorless" / "groups" / "__init__.py").write_text("from mirrorless.lane import Lane\n")

    found = traced(tmp_path, "import mirrorless.groups.sync\n", groups__sync="from . import ports", lane="")

    assert "mirrorless/lane" in names(found)
    assert "groups/sync" in names(found)


def test_relative_imports_are_followed(tmp_path: Path) -> None:
    found = traced(tmp_path, "from mirrorless.a import x", a="from .b import x\nfrom . import c\n", b="", c="")

    assert names(found) == ["mirrorless/__init__", "mirrorless/a", "mirrorless/b", "mirrorless/c"]


def test_what_is_imported_for_types_only_never_happens(tmp_path: Path) -> None:
    entry = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pydantic\nelse:\n    import msgspec\n"

    assert list(traced(tmp_path, entry).required) == ["msgspec"]


def test_python_itself_is_not_told_and_whoever_wants_the_rest_is(tmp_path: Path) -> None:
    found = traced(tmp_path, "import json\nfrom mirrorless import a\n", a="import boto3.session\n")

    assert found.required == {"boto3": "mirrorless.a"}


def test_what_may_be_absent_is_told_apart(tmp_path: Path) -> None:
    entry = "try:\n    import awslambdaric\nexcept ImportError:\n    import fallback\n"

    found = traced(tmp_path, entry)

    assert found.optional == {"awslambdaric"}
    assert list(found.required) == ["fallback"]


def test_a_try_for_another_reason_guards_no_import(tmp_path: Path) -> None:
    found = traced(tmp_path, "try:\n    import msgspec\nexcept ValueError:\n    pass\n")

    assert list(found.required) == ["msgspec"]


def test_a_module_that_is_not_there_is_named_with_whoever_wants_it(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"mirrorless\.a: imports mirrorless\.gone, which"):
        traced(tmp_path, "import mirrorless.a", a="from mirrorless.gone.away import x\n")


@pytest.mark.parametrize("line", ["importlib.import_module(name)", "__import__(name)"])
def test_an_import_by_a_computed_name_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(BuildError, match="line 2 imports by a computed name"):
        traced(tmp_path, f"import importlib\n{line}\n")
