"""The bundle of a function: its file, the packages of `mirrorless` that functions rest on, and the pinned wheels.

The lab runs functions out of the same folder, so what was tested is what is deployed. `make bundle` weighs them:
`lab.functions.bundles`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from infra.packaging import wheels
from infra.packaging.wheels import BuildError, Platform

REPOSITORY = Path(__file__).parents[2]
FUNCTIONS = REPOSITORY / "functions"
LOCK = FUNCTIONS / "requirements.txt"
PACKAGE = REPOSITORY / "shared" / "mirrorless"

RUNTIME = "3.13"
"""Lambda's Python: the newest for which our locked wheels were measured. Their glibc rules out all before 3.12."""

_NOT_OF_FUNCTIONS: Final = frozenset(
    {
        "adapters/archive.py",
        "backfill",
        "config",
        "cost",
        "jobs",
        "reconcile",
        "reports",
        "transforms/trial.py",
        "verify",
    }
)
"""Packages and modules that only jobs and commands import: a change of them changes no function."""

_NOT_NEEDED: Final[Mapping[str, frozenset[str]]] = {
    "remove_mappings": frozenset({"aws_lambda_powertools", "confluent_kafka", "cramjam", "crc32c", "pybase64"})
}
"""Dependencies that a function does not import: without Kafka's client a bundle has a quarter of the size."""


def build(
    function: str, *, platform: Platform = "local", out: Path = wheels.CACHE, functions: Path = FUNCTIONS
) -> Path:
    """Return the bundle of a function, building it when an input has changed.

    Args:
        function: the function's file in `functions/`, without `.py`.
        platform: where the bundle is to run: on Lambda under Python RUNTIME, or here under this interpreter.
        out: the folder that keeps bundles; the bundle is `<out>/<function>-<hash of the inputs>`.
        functions: where the function's file is.

    Raises:
        BuildError: there is no such function, or its dependencies cannot be installed.
    """
    entry = functions / f"{function}.py"
    if not entry.is_file():
        known = ", ".join(names(functions))
        raise BuildError("there is no such function", where=function, hint=f"choose one of: {known}")
    python = wheels.running_python() if platform == "local" else RUNTIME
    dependencies = wheels.install(LOCK, python=python, platform=platform, cache=out)
    needless = _NOT_NEEDED.get(function, frozenset())
    contents = {file.as_posix(): (PACKAGE.parent / file).read_bytes() for file in _modules()}
    contents[entry.name] = entry.read_bytes()
    inputs = (part for name, content in contents.items() for part in (name.encode(), content))

    def fill(empty: Path) -> None:
        for name, content in contents.items():
            path = empty / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if platform == "local":
            wheels.compile_sources(empty)
        for source in wheels.files(dependencies):
            file = source.relative_to(dependencies)
            if file.parts[0].partition("-")[0].partition(".")[0] not in needless:
                path = empty / file
                path.parent.mkdir(parents=True, exist_ok=True)
                _link(source, path)
        wheels.freeze_modes(empty)

    key = wheels.key(dependencies.name.encode(), " ".join(sorted(needless)).encode(), *inputs)
    return wheels.once(out / f"{function}-{key}", fill)


def _modules() -> list[Path]:
    """The modules that all functions carry, relative to the package's folder."""
    files = (path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))
    return [
        PACKAGE.name / file
        for file in files
        if _NOT_OF_FUNCTIONS.isdisjoint(part.as_posix() for part in (file, *file.parents))
    ]


def _link(source: Path, target: Path) -> None:
    """Dependencies change seldom and sources often: link the 20 MB, do not copy them. Neither is ever written to."""
    try:
        target.hardlink_to(source)
    except OSError:
        # Not every file system has hard links; a copy is slower and as good.
        shutil.copy2(source, target)


def names(functions: Path = FUNCTIONS) -> list[str]:
    """Every function, by its file."""
    return sorted(path.stem for path in functions.glob("*.py"))
