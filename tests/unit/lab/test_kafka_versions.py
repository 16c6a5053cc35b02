"""Kafka versions of a lab's clusters, as `lab up --kafka` takes them."""

from __future__ import annotations

import pytest

from lab import up
from lab.servers.artifacts import DEFAULT_KAFKA
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
