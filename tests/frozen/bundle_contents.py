"""Third-party distributions and files in the functions' bundles and the Spark archive.

Built for Lambda and for EMR, so that neither this machine nor its Python shows. Modules of `mirrorless` are left out:
they may move.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from infra.packaging import bundle, spark_archive, wheels
from infra.packaging.wheels import Platform

PLATFORM: Platform = "manylinux arm64"


def texts() -> dict[str, str]:
    """Distributions, and folders with the number of their files, by the golden file's name."""
    found = {
        f"bundles/{function}.txt": _contents(_below(bundle.build(function, platform=PLATFORM)), own=f"{function}.py")
        for function in bundle.names()
    }
    with_rules = bundle.build("forward", platform=PLATFORM, own={})
    found["bundles/forward-with-rules.txt"] = _contents(_below(with_rules), own="forward.py")
    with tarfile.open(spark_archive.environment(platform=PLATFORM).path) as archive:
        found["bundles/spark-archive.txt"] = _contents(entry.name for entry in archive if entry.isfile())
    with zipfile.ZipFile(spark_archive.package().path) as package:
        others = (name.rpartition("/")[2] for name in package.namelist() if not name.endswith(".py"))
        found["bundles/spark-package.txt"] = "".join(f"{name}\n" for name in sorted(others))
    return found


def _below(folder: Path) -> Iterator[str]:
    return (path.relative_to(folder).as_posix() for path in wheels.files(folder))


def _contents(names: Iterable[str], *, own: str = "") -> str:
    foreign = [path for path in map(PurePosixPath, names) if path.parts[0] not in {"mirrorless", own}]
    notes = {path.parts[0] for path in foreign if path.parts[0].endswith(".dist-info")}
    folders = Counter(path.parent.as_posix() for path in foreign if len(path.parts) > 1 and path.parts[0] not in notes)
    lines = [
        "distributions:",
        *(f"  {note.removesuffix('.dist-info')}" for note in sorted(notes)),
        "files at the root:",
        *(f"  {path}" for path in sorted(foreign) if len(path.parts) == 1),
        "files by folder:",
        *(f"  {folder}: {count}" for folder, count in sorted(folders.items())),
    ]
    return "\n".join(lines) + "\n"
