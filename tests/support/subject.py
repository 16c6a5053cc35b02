"""The tests of a subject: `python -m tests.support.subject verify` prints what `make test FOR=verify` runs.

A subject is a package of `shared/mirrorless`, or a folder of the repository beside it, as `cli`. Its tests are the
files that import from it, themselves or by a module of `tests/support`: what rests on it in the product has tests of
its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"
PACKAGE: Final = ROOT / "shared" / "mirrorless"
_FROM: Final = re.compile(r"^ *from ([\w.]+) import (\([^)]*\)|[^#\n]*)", re.MULTILINE)
_PLAIN: Final = re.compile(r"^ *import ([^#\n]+)", re.MULTILINE)
BESIDE: Final = ("cli", "infra", "lab", "spark")


def files_of(subject: str) -> list[Path]:
    """The files with tests of a subject, in the order of their names.

    Raises:
        ValueError: there is no such package.
    """
    if subject not in BESIDE and not (subject and (PACKAGE / subject / "__init__.py").is_file()):
        raise ValueError(f"{subject}: name a package of shared/mirrorless, or one of {', '.join(BESIDE)}")
    if subject not in BESIDE:
        subject = f"mirrorless.{subject}"
    support = [path for path in TESTS.joinpath("support").glob("*.py") if _rests_on(path, {subject})]
    wanted = {subject, *(f"tests.support.{path.stem}" for path in support)}
    return [path for path in sorted(TESTS.rglob("test_*.py")) if _rests_on(path, wanted)]


def _rests_on(path: Path, wanted: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for name in _imported(path) for each in wanted)


@cache
def _imported(path: Path) -> frozenset[str]:
    return frozenset(_names(path))


def _names(path: Path) -> Iterator[str]:
    """What import statements name, of a program in a text too. The trees of all tests would take two seconds."""
    for module, names in _FROM.findall(text := path.read_text()):
        yield from (f"{module}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?[\s,]*", names))
    for names in _PLAIN.findall(text):
        yield from re.findall(r"[\w.]+", names)


if __name__ == "__main__":
    try:
        print(*(path.relative_to(ROOT) for path in files_of(sys.argv[1])))
    except ValueError as error:
        sys.exit(str(error))
