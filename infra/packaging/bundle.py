"""The bundle of a function: its file, the modules of `mirrorless` that it imports, and the pinned wheels it needs.

The lab runs functions out of the same folder, so what was tested is what is deployed. `make bundle` weighs them:
`lab.functions.bundles`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.packaging import distributions, imports, wheels
from infra.packaging.wheels import BuildError, Platform

REPOSITORY = Path(__file__).parents[2]
FUNCTIONS = REPOSITORY / "functions"
LOCK = FUNCTIONS / "requirements.txt"
PACKAGE = REPOSITORY / "shared" / "mirrorless"

RUNTIME = "3.13"
"""Lambda's Python: docs/decisions/0020-python-3-13.md."""


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
        BuildError: there is no such function, it imports what no bundle carries, or its dependencies cannot be
            installed.
    """
    entry = functions / f"{function}.py"
    if not entry.is_file():
        known = ", ".join(names(functions))
        raise BuildError("there is no such function", where=function, hint=f"choose one of: {known}")
    python = wheels.running_python() if platform == "local" else RUNTIME
    dependencies = wheels.install(LOCK, python=python, platform=platform, cache=out)
    found = imports.trace(entry, PACKAGE)
    wanted = _wanted(found, dependencies)
    sources = {entry.name: entry, **{str(Path(PACKAGE.name) / file.relative_to(PACKAGE)): file for file in found.files}}
    contents = {name: path.read_bytes() for name, path in sources.items()}
    inputs = (part for name, content in contents.items() for part in (name.encode(), content))

    def fill(empty: Path) -> None:
        for name, content in contents.items():
            path = empty / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if platform == "local":
            wheels.compile_sources(empty)
        for file in wanted:
            path = empty / file
            path.parent.mkdir(parents=True, exist_ok=True)
            _link(dependencies / file, path)
        wheels.freeze_modes(empty)

    key = wheels.key(dependencies.name.encode(), " ".join(map(str, wanted)).encode(), *inputs)
    return wheels.once(out / f"{function}-{key}", fill)


def _wanted(found: imports.Imports, folder: Path) -> list[Path]:
    """The files of the dependencies that a function needs, relative to their folder."""
    known = distributions.providers(folder)
    for name, module in found.required.items():
        if name not in known:
            hint = f"add it to functions/requirements.in and `make lock`, or keep {module} out of the function's reach"
            raise BuildError(f"imports {name}, which no function's bundle carries", where=module, hint=hint)
    needed = distributions.needed(folder, [*found.required, *(found.optional & known.keys())])
    mine = {name for each in needed for name in (*each.tops, each.notes)}
    stems = {name.removesuffix(".py") for name in mine}  # byte code of `six.py` lies in the folder that all share
    paths = (path.relative_to(folder) for path in wheels.files(folder))
    return [path for path in paths if path.parts[0] in mine or _of_one(path) in stems]


def _of_one(path: Path) -> str | None:
    return path.name.partition(".")[0] if path.parts[0] == "__pycache__" else None


def _link(source: Path, target: Path) -> None:
    """Dependencies change seldom and sources often: link the 20 MB, do not copy them. Nobody writes into either."""
    try:
        target.hardlink_to(source)
    except OSError:
        # Not every file system has hard links; a copy is slower and as good.
        shutil.copy2(source, target)


def names(functions: Path = FUNCTIONS) -> list[str]:
    """Every function, by its file."""
    return sorted(path.stem for path in functions.glob("*.py"))
