"""Archives of the classes that a server loads (AppCDS): its next start maps them instead of reading jars.

A broker starts with three fifths of the CPU. An archive fits one Java and one class path, is made once, and lies in the
cache beside the jars.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from infra.packaging.wheels import taking_turns
from lab.servers.artifacts import cache_folder, java_version


def class_archive_options(name: str, jars: Path, make: Callable[[Path], None]) -> list[str]:
    """The options that let a JVM start from the archive of these jars; none where this Java makes no archives.

    Args:
        name: the server's, for people who look into the cache.
        jars: the folder of its jars.
        make: called where the archive is missing: runs the server once, with `-XX:ArchiveClassesAtExit` at this path.
    """
    archive = cache_folder() / f"{name}-classes-{_key(jars)}.jsa"
    if not archive.exists():
        with taking_turns(archive.parent):
            if not archive.exists():
                _make(archive, make)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []


def _make(archive: Path, make: Callable[[Path], None]) -> None:
    print(f"lab: archiving the classes of {archive.name} (once; about 10 s) ...", file=sys.stderr, flush=True)
    draft = archive.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    make(draft)
    draft.touch()  # empty where this Java made none: nobody need try again
    draft.rename(archive)


def _key(jars: Path) -> str:
    """Changes with Java and with the jars: a JVM refuses an archive whose jars have another path, size or time."""
    found = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(jars.glob("*.jar"))]
    return hashlib.sha256(repr((java_version(), found)).encode()).hexdigest()[:12]
