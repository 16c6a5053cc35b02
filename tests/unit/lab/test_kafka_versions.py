"""Kafka versions of a lab's clusters, as `lab up --kafka` takes them, and the archives of their classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import up
from lab.servers import kafka
from lab.servers.artifacts import DEFAULT_KAFKA
from lab.servers.kafka import class_archive_options
from mirrorless.errors import ConfigurationError

ALIASES = ("us-east", "eu-west")


@pytest.fixture(autouse=True)
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
