"""The creation of a remote topic by the forwarder, whose configs are those that the scheduled refresh would give it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka.admin import ConfigResource
from msgspec.structs import replace

from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.topics import NewRemoteTopic
from tests.support.flows import make_flow

SETTINGS = make_flow()


def seconds() -> float:
    """A deadline."""
    return 60.0


class Refusing:
    """As much of `KafkaTopics` as creates topics: none with a config of another vendor."""

    created: ClassVar[dict[str, NewRemoteTopic]] = {}

    def __init__(self, cluster: ClusterSettings, *, flow: str, role: str) -> None:
        """See `KafkaTopics`."""
        self.name = (cluster, flow, role)

    def create(
        self, topics: Sequence[NewRemoteTopic], _: Deadline, *, validate_only: bool = False
    ) -> dict[str, str | None]:
        """See `TargetTopics.create`."""
        errors = {
            topic.name: "no such config" if any(name.startswith("redpanda.") for name in topic.configs) else None
            for topic in topics
        }
        if not validate_only:
            self.created.update({topic.name: topic for topic in topics if not errors[topic.name]})
        return errors


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> KafkaTarget:
    """A target that refuses some configs."""
    Refusing.created.clear()
    monkeypatch.setattr("mirrorless.adapters.kafka.topics.KafkaTopics", Refusing)
    created = Refusing.created
    monkeypatch.setattr(
        KafkaTarget, "partition_count", lambda _, topic, __: created[topic].partitions if topic in created else 0
    )
    return KafkaTarget(SETTINGS, environment="e")


def test_a_config_that_the_target_refuses_is_left_out_and_logged(
    target: KafkaTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = {f"redpanda.remote.{name}": "true" for name in ("read", "write")}
    configs |= {"cleanup.policy": "compact", "segment.bytes": "2"}

    target.create_partitions("us-east.orders", 3, configs, seconds)

    new = Refusing.created["us-east.orders"]
    assert (new.partitions, new.replication_factor) == (3, 2)
    assert new.configs == {"cleanup.policy": "compact", "segment.bytes": "2"}
    line = json.loads(capsys.readouterr().out)
    assert line.pop("trouble") == "created without redpanda.remote.read, redpanda.remote.write: the target refuses it"
    assert line == {"level": "WARNING", "flow": "us-east->eu-west", "topic": "us-east.orders"}

    target.create_partitions("us-east.bills", 1, {"segment.bytes": "2"}, seconds)
    assert (capsys.readouterr().out, list(Refusing.created)) == ("", ["us-east.orders", "us-east.bills"])


def test_a_topic_that_is_refused_for_another_reason_is_an_error(
    target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refusing, "create", lambda _, topics, __, **___: {each.name: "denied" for each in topics})

    with pytest.raises(Retriable, match=r"did not create us-east\.orders with 1 partitions: denied"):
        target.create_partitions("us-east.orders", 1, {"segment.bytes": "2"}, seconds)


def test_partitions_that_are_refused_are_an_error(target: KafkaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    target.create_partitions("us-east.orders", 1, {}, seconds)
    monkeypatch.setattr(Refusing, "grow", lambda _, counts, __: dict.fromkeys(counts, "denied"), raising=False)

    with pytest.raises(Retriable, match=r"did not create us-east\.orders with 2 partitions: denied"):
        target.create_partitions("us-east.orders", 2, {}, seconds)


class Describing:
    """As much of `AdminClient` as describes one topic: one config of its own, one default."""

    def __init__(self, _: Any) -> None:
        """See `AdminClient`."""

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        """See `AdminClient.list_topics`: of one topic, and in time."""
        assert 0 < timeout < seconds()
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None})})

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, request_timeout: float
    ) -> dict[ConfigResource, Future[Any]]:
        """See `AdminClient.describe_configs`: in time."""
        assert 0 < request_timeout < seconds()
        described = {
            name: SimpleNamespace(name=name, value="1", source=source, is_read_only=False, is_sensitive=False)
            for name, source in (("retention.ms", 1), ("segment.bytes", 5), ("local.retention.ms", 1))
        }
        answer: Future[Any] = Future()
        answer.set_result(described)
        return dict.fromkeys(resources, answer)


@pytest.mark.parametrize(
    ("defaults_from", "configs"),
    [("target", {"retention.ms": "1"}), ("source", {"retention.ms": "1", "segment.bytes": "1"})],
)
def test_the_forwarder_takes_defaults_from_where_the_flow_says(
    defaults_from: Any, configs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrorless.adapters.kafka.admin.AdminClient", Describing)

    settings = replace(SETTINGS, use_defaults_from=defaults_from, config_properties_exclude=("local.*",))
    described = KafkaSource(settings).describe("orders", seconds)

    assert (described.partitions, described.configs) == (1, configs)
