"""The bundle of a function: its file, the packages of `mirrorless` that functions rest on, and the pinned wheels.

The lab runs functions out of the same folder, so what was tested is what is deployed. `make bundle` weighs them:
`lab.functions.bundles`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from infra.packaging import wheels
from infra.packaging.wheels import BuildError, Platform
from mirrorless.transforms.rules import Rule

REPOSITORY = Path(__file__).parents[2]
FUNCTIONS = REPOSITORY / "functions"
LOCK = FUNCTIONS / "requirements.txt"
LOCK_WITH_RULES = FUNCTIONS / "requirements-transforms.txt"
PACKAGE = REPOSITORY / "shared" / "mirrorless"

RUNTIME = "3.13"
"""Lambda's Python: the newest for which our locked wheels were measured. Their glibc rules out all before 3.12."""

_NOT_OF_FUNCTIONS: Final = frozenset(
    {
        "adapters/archive.py",
        "adapters/audits.py",
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

_APPLY_RULES: Final = frozenset({"control", "forward", "pull"})
"""The functions whose bundles have what rules need, where their flow has rules: to apply them, or to compare logs."""

_NOT_NEEDED: Final[Mapping[str, frozenset[str]]] = {
    "remove_mappings": frozenset({"aws_lambda_powertools", "confluent_kafka", "cramjam", "crc32c", "pybase64"})
}
"""Dependencies that a function does not import: without Kafka's client a bundle has a quarter of the size."""


def build(
    function: str,
    *,
    platform: Platform = "local",
    own: Mapping[str, bytes] | None = None,
    out: Path = wheels.CACHE,
    functions: Path = FUNCTIONS,
) -> Path:
    """Return the bundle of a function, building it when an input has changed.

    Args:
        function: the function's file in `functions/`, without `.py`.
        platform: where the bundle is to run: on Lambda under Python RUNTIME, or here under this interpreter.
        own: see `own_modules`; None: the flow has no rules.
        out: the folder that keeps bundles; the bundle is `<out>/<function>-<hash of the inputs>`.
        functions: where the function's file is.

    Raises:
        BuildError: there is no such function, its dependencies cannot be installed, or a module of one's own has the
            name of something else.
    """
    entry = functions / f"{function}.py"
    if not entry.is_file():
        known = ", ".join(names(functions))
        raise BuildError("there is no such function", where=function, hint=f"choose one of: {known}")
    python = wheels.running_python() if platform == "local" else RUNTIME
    own = own if function in _APPLY_RULES else None
    lock, services = (LOCK, wheels.SERVICES) if own is None else (LOCK_WITH_RULES, wheels.SERVICES | {"kms"})
    dependencies = wheels.install(lock, python=python, platform=platform, cache=out, services=services)
    needless = _NOT_NEEDED.get(function, frozenset())
    contents = {file.as_posix(): (PACKAGE.parent / file).read_bytes() for file in _modules()}
    contents[entry.name] = entry.read_bytes()
    _check_names(own or {}, [*contents, *(path.name for path in dependencies.iterdir())])
    contents |= own or {}
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


def own_modules(rules: Iterable[Rule], configuration: str) -> dict[str, bytes] | None:
    """The modules of the functions that rules name, by their files; None where there are no rules.

    Of `package.module:function` it is the whole package, of `module:function` this one file.

    Args:
        rules: of a flow, or of all flows.
        configuration: the path of replication.yaml; the modules lie beside it.

    Raises:
        BuildError: a module cannot be read.
    """
    rules, folder = tuple(rules), Path(configuration).parent
    files = {folder / f"{rule.function.partition(':')[0].replace('.', '/')}.py" for rule in rules if rule.function}
    files |= {each for file in files if file.parent != folder for each in _package(file, folder).rglob("*.py")}
    try:
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(files)} if rules else None
    except OSError as exc:
        hint = "put the module of a rule's `function` beside replication.yaml"
        raise BuildError(f"it cannot be read: {exc.strerror}", where=str(exc.filename), hint=hint) from exc


def _package(file: Path, folder: Path) -> Path:
    """The folder below `folder` that a file is in."""
    return folder / file.relative_to(folder).parts[0]


def _check_names(own: Iterable[str], taken: Iterable[str]) -> None:
    """Raise BuildError: one's own module would stand in the place of another, or behind it."""
    names = {name.partition("/")[0].partition(".")[0] for name in taken}
    for name in own:
        if name.partition("/")[0].partition(".")[0] in names:
            raise BuildError("a module of our own or of a library has this name", where=name, hint="rename yours")


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
