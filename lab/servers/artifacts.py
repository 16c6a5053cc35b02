"""The servers' jars, which plain `mvn` fetches from Maven Central once, and classes compiled against them, in a cache.

A folder appears in the cache whole or not at all: it is filled under another name and then renamed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from string import Template

from infra.packaging.wheels import taking_turns
from mirrorless.errors import MirrorlessError

DEFAULT_KAFKA = "4.1.1"
"""Not the newest: a single 4.3.1 node that is killed right after a commit can lose that commit's marker."""

OLDEST_KAFKA = (3, 9)
DYNAMODB_LOCAL = "3.0.0"
OLDEST_JAVA = 17
TEMPLATES = Path(__file__).parent / "jars"


class MissingTool(MirrorlessError):
    """Java or Maven is not on this machine, or too old. The text names the Debian package to install."""


class ArtifactsUnavailable(MirrorlessError):
    """Maven could not resolve the jars, or Java not compile against them; their own words are in the text."""

    retriable = True


def cache_folder() -> Path:
    """Where jars are kept: `$MIRRORLESS_CACHE`, else `.cache` in the repository."""
    chosen = os.environ.get("MIRRORLESS_CACHE")
    return Path(chosen).absolute() if chosen else Path(__file__).parents[2] / ".cache"


def kafka_jars(version: str = DEFAULT_KAFKA) -> Path:
    """The folder of one Kafka version's jars: the broker, its tools and Java clients, and a logging backend.

    Raises:
        MissingTool: no Maven.
        ArtifactsUnavailable: the version does not exist, or Maven cannot reach a repository.
        ValueError: a version below 3.9, or not a version at all.
    """
    match = re.fullmatch(r"(\d+)\.(\d+)\.\d+", version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_KAFKA:
        raise ValueError(
            f"{version!r} is not a Kafka version for the lab: give 3.9.0 or newer, such as {DEFAULT_KAFKA}"
        )
    # Kafka 4 logs through log4j 2, Kafka 3 through reload4j; neither brings its backend along.
    template = "kafka-3-pom.xml" if match[1] == "3" else "kafka-pom.xml"
    return resolve(f"kafka-{version}", template, version)


def dynamodb_jars() -> Path:
    """The folder of DynamoDB Local's jars and of the native SQLite library that it stores tables with.

    Raises:
        MissingTool: no Maven.
        ArtifactsUnavailable: Maven cannot reach a repository.
    """
    return resolve(f"dynamodb-local-{DYNAMODB_LOCAL}", "dynamodb-pom.xml", DYNAMODB_LOCAL)


def compiled(source: Path, jars: Path) -> Path:
    """The folder of a Java program's classes, compiled once; `java` compiles a source file at each start, for 1.5 s.

    Raises:
        MissingTool: this Java is a runtime without a compiler.
        ArtifactsUnavailable: the program does not compile.
    """
    if not compiles(java_command()):
        raise MissingTool(
            f"this Java is a runtime without a compiler, and cannot compile {source.name}",
            where=java_command(),
            hint="install a JDK (Debian: apt-get install openjdk-17-jdk-headless).",
        )
    text = "\n".join((source.read_text(), java_version(), classpath(jars)))
    folder = cache_folder() / f"{source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not folder.is_dir():
        with taking_turns(cache_folder()):
            if not folder.is_dir():
                _compile(source, jars, folder)
    return folder


def _compile(source: Path, jars: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as unfinished:
        classes = Path(unfinished) / "classes"
        compiler = [java_command(), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
        done = subprocess.run(
            [*compiler, "-cp", classpath(jars), "-d", str(classes), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ArtifactsUnavailable(f"it does not compile:\n{done.stdout}{done.stderr}", where=str(source))
        classes.rename(folder)


def classpath(jars: Path) -> str:
    """Every jar by name, in one order on every machine: a wildcard's order is the file system's."""
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))


@functools.cache
def java_command() -> str:
    """The `java` to run: `$JAVA_HOME`'s if set, else the one on PATH.

    Raises:
        MissingTool: there is none, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    hint = "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)."
    if java is None:
        raise MissingTool("java is not on this machine", where=f"JAVA_HOME={home}" if home else "PATH", hint=hint)
    answer = _version_of(java)
    found = re.search(r'version "(\d+)', answer)
    if found is None or int(found[1]) < OLDEST_JAVA:
        raise MissingTool(f"java is too old: {answer.splitlines()[:1]}", where=java, hint=hint)
    return java


def java_version() -> str:
    """What `java -version` says of the Java to run, without the options that it notes to have found."""
    lines = _version_of(java_command()).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("NOTE: ", "Picked up ")))


@functools.cache
def _version_of(java: str) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


@functools.cache
def compiles(java: str) -> bool:
    """Whether this Java runs a source file, as a JDK does and a mere runtime does not."""
    return (
        "jdk.compiler" in subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False).stdout
    )


def resolve(name: str, template: str, version: str) -> Path:
    """The cache's folder `name`; filled by Maven from the pom template if it is not there yet."""
    folder = cache_folder() / name
    if not folder.is_dir():
        with taking_turns(cache_folder()):
            if not folder.is_dir():
                _fetch(folder, template, version)
    return folder


def _fetch(folder: Path, template: str, version: str) -> None:
    name = folder.name
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingTool(
            "mvn is not on this machine", where="PATH", hint="install Maven (Debian: apt-get install maven)"
        )
    print(f"lab: fetching {name} with Maven into {folder} (once; about 15 s) ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as unfinished:
        pom = Path(unfinished) / "pom.xml"
        pom.write_text(Template((TEMPLATES / template).read_text()).substitute(version=version))
        jars = Path(unfinished) / "jars"
        argv = [maven, "--batch-mode", "--quiet", f"--file={pom}", "dependency:copy-dependencies"]
        fetched = subprocess.run(
            [*argv, "-DincludeScope=runtime", f"-DoutputDirectory={jars}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode:
            raise ArtifactsUnavailable(
                f"Maven could not fetch it:\n{(fetched.stdout + fetched.stderr)[-3000:]}",
                where=name,
                hint="check the version, and that `mvn` on its own can reach its repositories (~/.m2/settings.xml).",
            )
        jars.rename(folder)


if (
    __name__ == "__main__"
):  # beside the rest of a set-up; one after the other, for two of Maven may not share a repository
    kafka_jars(os.environ.get("KAFKA") or DEFAULT_KAFKA)
    dynamodb_jars()
