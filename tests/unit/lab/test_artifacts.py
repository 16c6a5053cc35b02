"""Jars come once, whole or not at all; and what is missing on the machine is named with its package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.servers import kafka
from lab.servers.artifacts import (
    ArtifactsUnavailable,
    MissingTool,
    cache_folder,
    dynamodb_jars,
    java_command,
    kafka_jars,
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine whose PATH is one folder, empty at first, and whose cache is empty too."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setenv("MIRRORLESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java_command.cache_clear()
    yield bin_folder
    java_command.cache_clear()


def install(machine: Path, name: str, script: str) -> None:
    program = machine / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (java_command, r"java is not on this machine.*apt-get install openjdk-17-jre-headless"),
        (dynamodb_jars, r"mvn is not on this machine.*apt-get install maven"),
    ],
    ids=["java", "maven"],
)
def test_what_is_missing_is_named_with_its_package_in_one_line(
    machine: Path, wanted: Callable[[], object], said: str
) -> None:
    with pytest.raises(MissingTool, match=said) as raised:
        wanted()

    assert "\n" not in str(raised.value)
    assert not list(machine.iterdir())


def test_java_11_is_too_old(machine: Path) -> None:
    install(machine, "java", """echo 'openjdk version "11.0.22" 2024-01-16' >&2""")

    with pytest.raises(MissingTool, match=r"java is too old: .*11\.0\.22.*openjdk-17"):
        java_command()


def test_java_home_wins_over_the_path(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(machine, "java", """echo 'openjdk version "17.0.1"' >&2""")
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    install(tmp_path / "jdk" / "bin", "java", """echo 'openjdk version "21.0.1"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    assert java_command() == str(tmp_path / "jdk" / "bin" / "java")


def test_a_failed_fetch_leaves_nothing_and_repeats_mavens_own_words(machine: Path) -> None:
    """A half-filled folder would be taken for a whole one at the next start, and fail far from its cause."""
    install(machine, "mvn", "echo 'Could not find artifact kafka_2.13:9.9.9'; exit 1")

    with pytest.raises(ArtifactsUnavailable, match=r"(?s)kafka-9\.9\.9: .*Could not find artifact kafka_2\.13:9\.9\.9"):
        kafka_jars("9.9.9")

    assert list(cache_folder().iterdir()) == []


def test_jars_are_fetched_once(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_named_last = (
        r"""for last; do :; done; folder=${last#-DoutputDirectory=}; /bin/mkdir "$folder"; : > "$folder/a.jar" """
    )
    install(machine, "mvn", folder_named_last)

    first = kafka_jars("4.1.1")
    (machine / "mvn").unlink()
    second = kafka_jars("4.1.1")

    assert first == second == cache_folder() / "kafka-4.1.1"
    assert [jar.name for jar in first.iterdir()] == ["a.jar"]
    assert capsys.readouterr().err.count("fetching kafka-4.1.1") == 1


@pytest.mark.parametrize("version", ["3.8.1", "2.13", "latest", "", "4.1.1; rm"])
def test_a_version_that_the_lab_cannot_run_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"not a Kafka version for the lab: give 3\.9\.0 or newer"):
        kafka_jars(version)


def test_the_client_that_warms_a_broker_up_writes_nothing_between_the_lines_of_the_lab(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka, "ARCHIVED_WITHIN_S", 1.0)

    with pytest.raises(TimeoutError):
        kafka._use("127.0.0.1:1")

    assert capfd.readouterr().err == ""
