"""What a lab needs before anything starts: jars, Java, versions of Kafka, and a configuration that can run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import up
from lab.__main__ import main
from lab.servers import kafka
from lab.servers.artifacts import (
    DEFAULT_KAFKA,
    ArtifactsUnavailable,
    MissingTool,
    cache_folder,
    dynamodb_jars,
    java_command,
    kafka_jars,
)
from lab.servers.kafka import class_archive_options
from mirrorless.errors import ConfigurationError
from tests.support.commands import replication_yaml


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


ALIASES = ("us-east", "eu-west")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions whose jars were wanted; none is fetched."""
    wanted: list[str] = []

    def take(version: str) -> None:
        if not version[0].isdigit():
            raise ValueError(f"{version!r} is not a Kafka version for the lab")
        wanted.append(version)

    monkeypatch.setattr(up, "kafka_jars", take)
    monkeypatch.delenv("KAFKA", raising=False)
    return wanted


def test_one_version_is_that_of_all_clusters_and_one_with_an_alias_that_of_its_own(fetched: list[str]) -> None:
    assert up.kafka_versions([], ALIASES) == (DEFAULT_KAFKA, {})
    assert up.kafka_versions(["4.0.0", "eu-west=3.9.1"], ALIASES) == ("4.0.0", {"eu-west": "3.9.1"})
    assert set(fetched) == {DEFAULT_KAFKA, "4.0.0", "3.9.1"}


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize(
    ("given", "what"), [("eu-wets=3.9.1", "no cluster 'eu-wets'"), ("eu-west=new", "'new' is not")]
)
def test_an_alias_or_a_version_that_there_is_not_is_refused_before_anything_starts(given: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        up.kafka_versions([given], ALIASES)


@pytest.mark.parametrize(
    ("left", "ended", "options", "tries"),
    [(b"classes", True, 1, 1), (None, True, 0, 1), (None, False, 0, 2)],
    ids=["made", "this Java makes none", "killed meanwhile"],
)
def test_an_archive_of_classes_is_made_once_unless_its_jvm_is_killed(
    left: bytes | None, *, ended: bool, options: int, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def make(draft: Path) -> bool:
        tried.append(draft)
        if left is not None:
            draft.write_bytes(left)
        return ended

    monkeypatch.setattr(kafka, "cache_folder", lambda: tmp_path)

    found = [class_archive_options("kafka-4.1.1", tmp_path, make) for _ in range(2)]

    assert [len(each) for each in found] == [options, options]
    assert len(tried) == tries


CONFIGURATION = replication_yaml("us-east->eu-west: {topics: [orders]}", "eu-west->us-east: {topics: [orders]}")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals are handled afterwards as they were before: the command sets handlers for its process."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "_run", lambda *_: pytest.fail("it starts"))


def lab(folder: Path, configuration: str, *options: str) -> int:
    """The exit code of the command."""
    (config := folder / "replication.yaml").write_text(configuration)
    try:
        return main(["up", "--config", str(config), "--state", str(folder / "state.json"), *options])
    except SystemExit as exc:  # of argparse
        return int(exc.code or 0)


@pytest.mark.parametrize(
    ("configuration", "options", "said"),
    [
        (CONFIGURATION.replace("eu-west->us-east:", "eu-west->mars:"), (), "mars"),
        (CONFIGURATION.replace("topics:", "topic:"), (), "topic"),
        (CONFIGURATION, ("--kafka", "3.8.0"), "3.8.0"),
        (CONFIGURATION, ("--partitions", "0"), "--partitions"),
        (CONFIGURATION, ("--state", "/proc/nowhere/state.json"), "/proc/nowhere/state.json"),
    ],
)
def test_what_cannot_run_is_refused_in_one_clear_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], configuration: str, options: tuple[str, ...], said: str
) -> None:
    code = lab(tmp_path, configuration, *options)

    told = capsys.readouterr()
    assert code == 2, told
    assert said in told.err
    assert not (tmp_path / "state.json").exists()


def test_two_labs_do_not_run_on_the_same_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(up, "_run", lambda *_: codes.append(lab(tmp_path, CONFIGURATION)))

    assert lab(tmp_path, CONFIGURATION) == 0
    assert codes == [2]
    assert "another lab runs on these data" in capsys.readouterr().err


def test_a_cluster_of_three_keeps_three_replicas_of_everything_and_needs_two() -> None:
    assert set(kafka.replication(1).values()) == {"1"}
    for name, value in kafka.replication(3).items():
        assert value == ("2" if "min" in name else "3"), name
    assert {"transaction.state.log.replication.factor", "min.insync.replicas"} <= kafka.replication(3).keys()
