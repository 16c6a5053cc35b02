"""Artifacts of Spark jobs: our packages as one file, their dependencies as an archive; built without Docker.

The archive holds libraries only and is put on the PYTHONPATH of EMR's own Python 3.11. A packed virtual environment
would bring a link to the interpreter of the machine that built it, which EMR does not have, or an interpreter of its
own to keep patched. What changes with every commit, our package, is apart from what changes with a lock file.

Neither depends on who builds it, nor when: `Artifact.hash` is of what is in it, so that a newer gzip changes nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from infra.packaging import wheels
from infra.packaging.bundle import PACKAGE, REPOSITORY
from infra.packaging.wheels import Platform
from mirrorless.jobs.request import JobKind

PYTHON = "3.11"
"""EMR's, of the two that its release has: ours too. https://docs.aws.amazon.com/emr/latest/ReleaseGuide/"""

SCRIPTS = REPOSITORY / "spark"
LOCK = SCRIPTS / "requirements.txt"
LOCK_WITH_RULES = SCRIPTS / "requirements-transforms.txt"

SERVICES = wheels.SERVICES | {"s3"}
"""Jobs read plans and write reports; functions have no business in S3."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first moment that a zip file can name."""

_COMPRESSION = 4
"""Half the time of gzip's default, 6, for 4 percent more bytes; 9 takes 14 s to save half a percent of its result."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file to deploy.

    Attributes:
        path: the file.
        hash: 64 hex digits, of its contents and not of their compression.
    """

    path: Path
    hash: str


def environment(
    *, python: str = PYTHON, platform: Platform = "local", rules: bool = False, out: Path = wheels.CACHE
) -> Artifact:
    """Return the archive of the jobs' dependencies, `.tgz`, building it when an input has changed.

    Args:
        python: the version of the jobs' interpreter; for `local` the running one.
        platform: where the jobs are to run.
        rules: whether any flow has rules.
        out: the folder that keeps what is built.

    Raises:
        BuildError: the dependencies cannot be installed.
    """
    lock, services = (LOCK_WITH_RULES, SERVICES | {"kms"}) if rules else (LOCK, SERVICES)
    folder = wheels.install(lock, python=python, platform=platform, cache=out, services=services)
    name = "environment.tgz"

    def fill(empty: Path) -> None:
        with (
            (empty / name).open("wb") as file,
            gzip.GzipFile(filename="", mode="wb", compresslevel=_COMPRESSION, fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
        ):
            for path in wheels.files(folder):
                archive.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False, filter=_anonymous)

    built = wheels.once(out / f"spark-{wheels.key(folder.name.encode(), Path(__file__).read_bytes())}", fill)
    return Artifact(built / name, wheels.tree_hash(folder))


def package(*, own: Mapping[str, bytes] | None = None, out: Path = wheels.CACHE) -> Artifact:
    """Return our package as a wheel whose name ends in `.zip`, and in nothing else that PySpark would import from.

    It is what pip takes, under the name that PySpark takes: of `spark.submit.pyFiles`, only `.zip`, `.egg` and `.jar`
    come onto a worker's path (`SparkContext.PACKAGE_EXTENSIONS`). Nothing in it is compressed: it is small, and the
    same bytes whatever zlib there is.

    Args:
        own: the files of the functions that rules name, see `mirrorless.transforms`.
        out: the folder that keeps what is built.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    version, notes = project["version"], f"mirrorless-{project['version']}.dist-info"
    files = {**(own or {}), **{name: path.read_bytes() for name, path in _sources().items()}}
    files[f"{notes}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: mirrorless\nVersion: {version}\nSummary: {project['description']}\n"
        f"Requires-Python: {project['requires-python']}\n"
    ).encode()
    files[f"{notes}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: mirrorless\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    recorded = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{notes}/RECORD"] = f"{recorded}{notes}/RECORD,,\n".encode()
    name = f"mirrorless-{version}-py3-none-any.zip"

    def fill(empty: Path) -> None:
        with zipfile.ZipFile(empty / name, "w", zipfile.ZIP_STORED) as wheel:
            for path, content in files.items():
                entry = zipfile.ZipInfo(path, _EPOCH)
                entry.external_attr = 0o644 << 16
                wheel.writestr(entry, content)

    inputs = (part for path, content in files.items() for part in (path.encode(), content))
    built = wheels.once(out / f"package-{wheels.key(Path(__file__).read_bytes(), *inputs)}", fill) / name
    return Artifact(built, hashlib.sha256(built.read_bytes()).hexdigest())


def scripts(folder: Path = SCRIPTS) -> dict[str, Artifact]:
    """The files that EMR Serverless starts, by the names of the jobs: each job's module is its script, too."""
    found = (folder / f"{kind}.py" for kind in sorted(get_args(JobKind)))
    return {path.stem: Artifact(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in found}


def _sources() -> dict[str, Path]:
    """The files of our two packages, by their names in the archive."""
    return {
        path.relative_to(package.parent).as_posix(): path
        for package in (PACKAGE, SCRIPTS)
        for path in wheels.files(package)
        if "__pycache__" not in path.parts and (package is PACKAGE or path.suffix == ".py")
    }


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Forget whose file it was, and since when."""
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
    return entry
