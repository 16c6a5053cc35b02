"""Kafka's own Java client, in a process for each program of `tests/java`."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lab.servers.artifacts import DEFAULT_KAFKA, TEMPLATES, classpath, compiled, java_command, kafka_jars
from tests.support.readback import await_settled

VERSION = os.environ.get("KAFKA") or DEFAULT_KAFKA
PROGRAMS = Path(__file__).parent.parent / "java"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A record as it is handed to the source's producer."""

    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 1_763_700_000_123


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A record as Java's client reads it."""

    partition: int
    offset: int
    type: str
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def content(self) -> Given:
        """What has to arrive unchanged."""
        return Given(key=self.key, value=self.value, headers=self.headers, timestamp=self.timestamp)


@cache
def java_program(name: str) -> tuple[str, ...]:
    """The command that runs a program of `tests/java`; it needs a JDK, not only a JRE."""
    jars = kafka_jars(VERSION)
    path = os.pathsep.join((str(compiled(PROGRAMS / f"{name}.java", jars)), classpath(jars)))
    logging = (
        f"-Dlog4j2.configurationFile={TEMPLATES / 'log4j2.properties'}",
        f"-Dlog4j.configuration=file:{TEMPLATES / 'log4j.properties'}",
    )
    return (
        java_command(),
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *logging,
        "-cp",
        path,
        name,
    )


def run_java(name: str, *arguments: str) -> None:
    """Run a program to its end."""
    done = subprocess.run([*java_program(name), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def read_by_java(bootstrap: str, topic: str, folder: Path) -> dict[int, list[Read]]:
    """A topic's visible records by partition. Args: folder: for the program's output."""
    output = folder / f"{topic}.jsonl"
    run_java("ReadBack", bootstrap, topic, str(output))
    found: dict[int, list[Read]] = {}
    with output.open() as lines:
        for line in lines:
            record = _read(line)
            found.setdefault(record.partition, []).append(record)
    return found


def write_by_java(bootstrap: str, topic: str, script: Sequence[Sequence[Any]], folder: Path) -> None:
    """Write records by orders to Java's producer: see `WriteRecords.java`. Args: folder: for the program's input."""

    def text(value: bytes | None) -> str:
        return "-" if value is None else b64encode(value).decode()

    lines = []
    for words in script:
        if words[0] == "record":
            _, partition, given = words
            headers = [part for name, value in given.headers for part in (text(name.encode()), text(value))]
            fields = [str(partition), str(given.timestamp), text(given.key), text(given.value), *headers]
            lines.append("\t".join(["record", *fields]))
        else:
            lines.append("\t".join(words))
    path = folder / "script"
    path.write_text("\n".join(lines))
    run_java("WriteRecords", bootstrap, topic, str(path))
    await_settled(bootstrap, topic)


def _read(line: str) -> Read:
    fields = json.loads(line)
    return Read(
        partition=fields["partition"],
        offset=fields["offset"],
        type=fields["type"],
        timestamp=fields["timestamp"],
        key=_bytes(fields["key"]),
        value=_bytes(fields["value"]),
        headers=tuple((b64decode(name).decode(), _bytes(value)) for name, value in fields["headers"]),
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
