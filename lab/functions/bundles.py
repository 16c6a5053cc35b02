"""The functions' bundles, built and weighed: `python -m lab.functions.bundles` prints sizes and tree hashes.

For this machine it also prints how long the imports of a cold start take under the real runtime interface client.
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

from infra.packaging import bundle, wheels
from infra.packaging.wheels import BuildError, Platform
from lab.functions.function import LambdaFunction


def main() -> None:
    """Build bundles and say what they weigh."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.functions.bundles", description="Build the functions' bundles."
    )
    parser.add_argument("functions", nargs="*", help="files of functions/, without .py; left out, all")
    parser.add_argument("--platform", action="append", choices=get_args(Platform), help="left out, all")
    parser.add_argument("--out", type=Path, default=wheels.CACHE, help="folder that keeps bundles")
    given = parser.parse_args()
    print(f"{'function':<22}{'platform':<18}{'unpacked':>9}{'zipped':>9}{'imports':>9}  tree hash")
    try:
        for function in given.functions or bundle.names():
            for platform in given.platform or get_args(Platform):
                folder = bundle.build(function, platform=platform, out=given.out)
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
