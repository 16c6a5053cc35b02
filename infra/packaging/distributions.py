"""Locked distributions that a function needs: those that it imports, and all that these require."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

_WRITTEN = re.compile(rb"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_DECLARED = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Distribution:
    """One installed distribution.

    Attributes:
        name: as PEP 503 compares it: `python-dateutil`.
        notes: its folder `….dist-info`.
        tops: its files and folders beside the notes.
        needs: the distributions beside it that it cannot do without.
    """

    name: str
    notes: str
    tops: tuple[str, ...]
    needs: frozenset[str]


@lru_cache(maxsize=8)  # a folder of dependencies never changes
def installed(folder: Path) -> Mapping[str, Distribution]:
    """Return what `infra.packaging.wheels.install` put into a folder, by name.

    A distribution needs what it declares, and what any of its files imports: Powertools imports boto3, and declares it
    for some of its users only.
    """
    found = {_normal(metadata.Distribution.at(notes).name): notes for notes in sorted(folder.glob("*.dist-info"))}
    tops = {name: tuple((notes / "top_level.txt").read_text().split()) for name, notes in found.items()}
    owners = {top.removesuffix(".py"): name for name, brought in tops.items() for top in brought}
    return {
        name: Distribution(
            name=name,
            notes=notes.name,
            tops=tops[name],
            needs=frozenset(_declared(notes) & found.keys())
            | {owners[top] for top in _imported(folder, tops[name]) & owners.keys()},
        )
        for name, notes in found.items()
    }


def needed(folder: Path, modules: Iterable[str]) -> list[Distribution]:
    """Return the distributions that bring these top-level modules, and all that those need, in order of name.

    Raises:
        KeyError: no distribution brings a module.
    """
    present, owners = installed(folder), providers(folder)
    waiting, found = [owners[module] for module in modules], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += present[name].needs
    return [present[name] for name in sorted(found)]


def providers(folder: Path) -> Mapping[str, str]:
    """Return which distribution brings each top-level module."""
    return {top.removesuffix(".py"): name for name, each in installed(folder).items() for top in each.tops}


def _declared(notes: Path) -> set[str]:
    lines = (line for line in metadata.Distribution.at(notes).requires or () if "extra ==" not in line)
    return {_normal(match[0]) for line in lines if (match := _DECLARED.match(line))}


def _imported(folder: Path, tops: Iterable[str]) -> set[str]:
    """The top-level names after `import` and `from` in any file; a sentence in a docstring may add one, and may."""
    paths = [folder / top for top in tops]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return {name.decode() for file in files if file.suffix == ".py" for name in _WRITTEN.findall(file.read_bytes())}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
