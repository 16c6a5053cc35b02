"""What folder is deployed as a function? Its file, what that imports of `mirrorless`, and the pinned wheels it needs.

The lab runs functions out of the same folder, so what was tested is what is deployed. `python -m
infra.packaging.bundle` builds all of them and prints sizes, tree hashes and, for this machine, how long the imports of
a cold start take under the real runtime interface client.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import get_args

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


def main() -> None:
    """Build bundles and say what they weigh."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.packaging.bundle", description="Build the functions' bundles."
    )
    parser.add_argument("functions", nargs="*", help="files of functions/, without .py; left out, all")
    parser.add_argument("--platform", action="append", choices=get_args(Platform), help="left out, all")
    parser.add_argument("--out", type=Path, default=wheels.CACHE, help="folder that keeps bundles")
    given = parser.parse_args()
    print(f"{'function':<22}{'platform':<18}{'unpacked':>9}{'zipped':>9}{'imports':>9}  tree hash")
    try:
        for function in given.functions or names():
            for platform in given.platform or get_args(Platform):
                folder = build(function, platform=platform, out=given.out)
                print(f"{function:<22}{platform:<18}{_weight(folder, function, platform)}", flush=True)
    except BuildError as error:
        sys.exit(str(error))


def _weight(folder: Path, function: str, platform: Platform) -> str:
    unpacked = sum(path.stat().st_size for path in wheels.files(folder)) / 1e6
    cold = f"{_cold_start_ms(folder, function):.0f} ms" if platform == "local" else ""
    return f"{unpacked:>6.1f} MB{_zipped(folder):>6.1f} MB{cold:>9}  {wheels.tree_hash(folder)}"


def _zipped(folder: Path) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        return Path(shutil.make_archive(f"{scratch}/bundle", "zip", folder)).stat().st_size / 1e6


def _cold_start_ms(folder: Path, function: str) -> float:
    """Milliseconds from process start to the first question for an event: the median of five starts.

    The function itself would look for its clusters, so a probe with the function's imports and nothing else stands in.
    """
    from lab.functions.function import LambdaFunction  # noqa: PLC0415 - deployment must not need the lab

    head = ast.parse((folder / f"{function}.py").read_text()).body
    imported = [ast.unparse(node) for node in head if isinstance(node, ast.Import | ast.ImportFrom)]
    with tempfile.TemporaryDirectory() as scratch:
        probe = Path(scratch, "imports_only.py")
        probe.write_text("\n".join(imported) + "\ndef handler(event, context): return None\n")
        started = LambdaFunction(
            name=function,
            bundle=folder,
            handler="imports_only.handler",
            variables={},
            timeout_seconds=10,
            folder=Path(scratch),
            layers=[Path(scratch)],
        )
        try:
            for _ in range(5):
                started.initialise()
            return median(environment.init_ms for environment in started.environments)
        finally:
            started.stop()


if __name__ == "__main__":
    main()
