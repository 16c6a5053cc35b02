"""Installation of a lock file into a folder that is the same, byte for byte, on every machine.

pip installs the pinned wheels; what depends on pip or the clock is removed, what no function of ours imports is
pruned, and modes are fixed. A folder is keyed by everything that went into it, so it is built once and then only read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mirrorless.errors import MirrorlessError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Platform = Literal["local", "manylinux arm64", "manylinux x86_64"]
"""Where a folder is to run: this machine's interpreter, or one of Lambda's two architectures."""

CACHE = Path(__file__).parents[2] / ".bundles"
"""Where built folders are kept. Ignored by git; may be deleted at any time when nothing runs out of it."""

_RECIPE = Path(__file__).read_bytes()
"""This module is an input too: what it prunes today must not be found in a folder of yesterday."""

_MACHINES = {"manylinux arm64": "aarch64", "manylinux x86_64": "x86_64"}
SERVICES = frozenset({"dynamodb", "lambda", "secretsmanager", "sts"})
"""What functions call of AWS; botocore carries the models of hundreds."""

_UTILITIES = frozenset({"jmespath_utils", "parameters", "typing"})
"""Of Powertools' utilities, which stand apart from each other."""

_PRUNED = (
    "bin",
    "boto3/examples",
    # Clients for a schema registry, and for Confluent's own tests: records are bytes to us.
    "confluent_kafka/avro",
    "confluent_kafka/kafkatest",
    "confluent_kafka/schema_registry",
    # Web APIs, half of Powertools by size.
    "aws_lambda_powertools/event_handler",
    # What pyarrow was built and tested with, its file systems, and Flight, a protocol of its own: half of it by size.
    *(f"pyarrow/{name}" for name in ("tests", "include", "includes", "src", "*.p[xy][dix]", "_pyarrow_cpp_tests*")),
    *(f"pyarrow/{name}" for name in ("*_flight*", "libarrow_s3*", "_s3fs*", "_gcsfs*", "_azurefs*", "_hdfs*")),
    # What numpy was built and tested with.
    *(f"numpy/{name}" for name in ("tests", "*/tests", "*/*/tests", "distutils", "f2py", "_core/include", "_core/lib")),
    "numpy/random/lib",
    # One library under three names, which a wheel cannot link: the loader needs `.so.N`.
    "pyarrow/libarrow*.so",
    "pyarrow/libarrow*.so.*.*",
)
_RECEIPTS = frozenset({"RECORD", "INSTALLER", "REQUESTED", "WHEEL", "direct_url.json", "zip-safe"})
"""What pip notes about itself. METADATA and licences stay: scanners read the one, the licences must go along."""

_OURS = re.compile(r"[a-z_]+-[0-9a-f]{16}|\.(building|unused)-.+")
_UNUSED_SECONDS = 30 * 86_400
"""After which a folder is taken for forgotten. A laboratory that runs out of one has been started since."""


class BuildError(MirrorlessError):
    """A bundle could not be built. `where` names the lock file or the function."""


def install(
    lock: Path,
    *,
    python: str,
    platform: Platform,
    cache: Path = CACHE,
    services: frozenset[str] = SERVICES,
) -> Path:
    """Return the folder with exactly what the lock file pins, installing it the first time.

    Args:
        lock: a requirements file with a hash for every wheel.
        python: the interpreter's version, `3.13`. For `local` it must be the running one.
        platform: where the folder is to run.
        cache: where built folders are kept.
        services: the services whose models botocore keeps.

    Raises:
        BuildError: pip could not install; its own words are in the error.
    """
    inputs = (python, _tag(platform), *sorted(services))
    folder = cache / f"deps-{key(lock.read_bytes(), *(word.encode() for word in inputs))}"

    def fill(empty: Path) -> None:
        print(f"Installing {lock.name} for Python {python}, {platform}: some seconds, once.", file=sys.stderr)
        _pip(lock, python=python, platform=platform, target=empty)
        _prune(empty, services)
        if platform == "local":
            compile_sources(empty)
        freeze_modes(empty)

    return once(folder, fill)


def once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Build a folder beside its place and rename it there: whoever finds it, finds it whole.

    The folder's own date is that of its last use; nothing that is deployed depends on it.
    """
    with suppress(FileNotFoundError):
        os.utime(folder)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.parent)
    with taking_turns(folder.parent), _scratch(folder.parent) as scratch:
        if not folder.is_dir():
            fill(scratch)
            scratch.chmod(0o755)
            scratch.rename(folder)
    return folder


@contextmanager
def taking_turns(folder: Path) -> Iterator[None]:
    """Let one process at a time fill a folder; the others then find what they need."""
    folder.mkdir(parents=True, exist_ok=True)
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)  # ends when the folder is closed, or the process is gone
        yield
    finally:
        os.close(place)


def sweep(cache: Path) -> None:
    """Remove the folders of ours that were not used in 30 days, and nothing else that lies there."""
    limit = time.time() - _UNUSED_SECONDS
    for folder in filter(lambda path: _OURS.fullmatch(path.name), cache.iterdir()):
        with suppress(OSError):  # another process sweeps as well
            if folder.stat().st_mtime >= limit:
                continue
            away = Path(tempfile.mkdtemp(prefix=".unused-", dir=cache), folder.name)
            folder.rename(away)
            if away.stat().st_mtime >= limit:  # another process used it just now
                away.rename(folder)
            shutil.rmtree(away.parent, ignore_errors=True)


def key(*inputs: bytes) -> str:
    """Sixteen hex digits that change when any input, its length, or this module changes."""
    digest = hashlib.sha256(_RECIPE)
    for part in inputs:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def tree_hash(folder: Path) -> str:
    """The SHA-256 of every path, executable bit and content below the folder, in order of path."""
    digest = hashlib.sha256()
    for file in files(folder):
        content = file.read_bytes()
        executable = b"x" if file.stat().st_mode & 0o100 else b"-"
        path = file.relative_to(folder).as_posix().encode()
        digest.update(b"%d %s %s %d\n" % (len(path), path, executable, len(content)) + content)
    return digest.hexdigest()


def files(folder: Path) -> list[Path]:
    """Every file below the folder, in order of path."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def compile_sources(folder: Path) -> None:
    """Ship byte code of this interpreter, half of a cold start's import time. Only for what this interpreter will run.

    A folder for Lambda holds none: it would depend on the interpreter that happened to build it, and would be another
    asset on another machine.

    `unchecked-hash`: Python never compares it with its source's date, which deployment does not keep. A fresh
    interpreter with a fixed hash seed compiles, because byte code depends on both.
    """
    argv = [sys.executable, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "."]
    _run(argv, cwd=folder, where=folder.name, env={**os.environ, "PYTHONHASHSEED": "0"})


def freeze_modes(folder: Path) -> None:
    """Files 644, folders 755, whatever the umask of the builder: they become part of the deployed zip."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def running_python() -> str:
    """The version of this interpreter, `3.13`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _tag(platform: Platform) -> str:
    return f"local {os.uname().machine} {sys.implementation.cache_tag}" if platform == "local" else platform


def _pip(lock: Path, *, python: str, platform: Platform, target: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary=:all:", "--require-hashes"]
    argv += ["--disable-pip-version-check", "--no-deps", "--target", str(target), "-r", str(lock)]
    if platform == "local":
        if python != running_python():
            raise BuildError(
                f"a local folder for Python {python} cannot be built by Python {running_python()}",
                where=lock.name,
                hint=f"run it with Python {python}, or choose a manylinux platform",
            )
    else:
        machine = _MACHINES[platform]
        argv += ["--implementation", "cp", "--python-version", python]
        # `--platform` replaces pip's list of tags instead of adding to it, so every one that Lambda can load is named.
        for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
            argv += ["--platform", f"{tag}_{machine}"]
    _run(argv, cwd=lock.parent, where=lock.name, env=None)


def _run(argv: Sequence[str], *, cwd: Path, where: str, env: dict[str, str] | None) -> None:
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        raise BuildError(f"{' '.join(argv[1:4])} failed: {output}", where=where, hint="read its output above")


def _prune(folder: Path, services: frozenset[str]) -> None:
    for pattern in _PRUNED:  # no folder has all of them
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for models in (folder / "botocore" / "data", folder / "boto3" / "data"):
        for service in models.glob("*/"):
            if service.name not in services:
                shutil.rmtree(service)
    for utility in (folder / "aws_lambda_powertools" / "utilities").glob("*/"):
        if utility.name not in _UTILITIES:
            shutil.rmtree(utility)
    for note in folder.glob("*.dist-info/*"):
        if note.name in _RECEIPTS:
            note.unlink()


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # gone already when it was renamed into place
