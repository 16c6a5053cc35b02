"""What folder is deployed as a function? Its one file, the package `mirrorless`, and the pinned dependencies.

The lab runs functions out of the same folder, so what was tested is what is deployed. `python -m infra.bundle` builds
one and prints its size, its tree hash and, for this machine, its cold start under the real runtime interface client.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import get_args

from infra import locked
from infra.locked import BuildError, Platform

REPOSITORY = Path(__file__).parent.parent
LOCK = REPOSITORY / "functions" / "requirements.txt"
PACKAGE = REPOSITORY / "shared" / "mirrorless"


def build(
    function: str,
    *,
    python: str = locked.running_python(),
    platform: Platform = "local",
    out: Path = locked.CACHE,
    functions: Path = REPOSITORY / "functions",
) -> Path:
    """Return the bundle of a function, building it when an input has changed.

    Args:
        function: the function's file in `functions/`, without `.py`.
        python: the version of the runtime, `3.13`; for `local` the running one.
        platform: where the bundle is to run.
        out: the folder that keeps bundles; the bundle is `<out>/<function>-<hash of the inputs>`.
        functions: where the function's file is.

    Raises:
        BuildError: there is no such function, or its dependencies cannot be installed.
    """
    entry = functions / f"{function}.py"
    if not entry.is_file():
        known = ", ".join(sorted(path.stem for path in functions.glob("*.py")))
        raise BuildError("there is no such function", where=function, hint=f"choose one of: {known}")
    dependencies = locked.install(LOCK, python=python, platform=platform, cache=out)
    sources = {f"{function}.py": entry.read_bytes(), **_package()}
    names_and_bytes = (part for name, content in sources.items() for part in (name.encode(), content))

    def fill(empty: Path) -> None:
        for name, content in sources.items():
            path = empty / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        locked.compile_sources(empty, python=python)
        locked.freeze_modes(empty)
        # Dependencies change seldom and sources often: link the 30 MB, do not copy them. Nobody writes into either.
        shutil.copytree(dependencies, empty, copy_function=_link, dirs_exist_ok=True)

    return locked.once(out / f"{function}-{locked.key(dependencies.name.encode(), *names_and_bytes)}", fill)


def _package() -> dict[str, bytes]:
    """The package's files by their path in the bundle, in order."""
    wanted = (path for path in locked.files(PACKAGE) if "__pycache__" not in path.parts)
    return {str(Path("mirrorless") / path.relative_to(PACKAGE)): path.read_bytes() for path in wanted}


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        # Not every file system has hard links; a copy is slower and as good.
        shutil.copy2(source, target)
    return target


def main() -> None:
    """Build a bundle and say what it weighs."""
    parser = argparse.ArgumentParser(prog="python -m infra.bundle", description="Build a function's bundle.")
    parser.add_argument("function", nargs="?", default="forward", help="a file of functions/, without .py")
    parser.add_argument("--python", default=locked.running_python(), help="version of the runtime, such as 3.13")
    parser.add_argument("--platform", default="local", choices=get_args(Platform))
    parser.add_argument("--out", type=Path, default=locked.CACHE, help="folder that keeps bundles")
    given = parser.parse_args()
    try:
        bundle = build(given.function, python=given.python, platform=given.platform, out=given.out)
    except BuildError as error:
        sys.exit(str(error))
    unpacked = sum(path.stat().st_size for path in locked.files(bundle))
    print(f"bundle      {bundle}")
    print(f"unpacked    {unpacked / 1e6:.1f} MB")
    print(f"zipped      {_zipped(bundle) / 1e6:.1f} MB")
    print(f"tree hash   {locked.tree_hash(bundle)}")
    if given.platform == "local":
        print(f"cold start  {_cold_start_ms(bundle, given.function):.0f} ms without its clusters")


def _zipped(bundle: Path) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        return Path(shutil.make_archive(f"{scratch}/bundle", "zip", bundle)).stat().st_size


def _cold_start_ms(bundle: Path, function: str) -> float:
    """Milliseconds from process start to the first question for an event: the median of five starts.

    The function itself would look for its clusters, so a probe with the function's imports and nothing else stands in.
    """
    from lab.function import LambdaFunction  # noqa: PLC0415 - deployment must not need the lab

    imports = (node for node in ast.parse((bundle / f"{function}.py").read_text()).body if _imports(node))
    with tempfile.TemporaryDirectory() as scratch:
        probe = Path(scratch, "imports_only.py")
        probe.write_text("\n".join(map(ast.unparse, imports)) + "\ndef handler(event, context): return None\n")
        started = LambdaFunction(
            name=function,
            bundle=bundle,
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


def _imports(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


if __name__ == "__main__":
    main()
