"""Which writers a target keeps warm, and the remote topics that it creates, without a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka.admin import ConfigResource
from msgspec.structs import replace

from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import LEAST_BATCH_BYTES, PROBE_AFTER_SECONDS, KafkaTarget
from mirrorless.adapters.kafka.writer import BATCH_BYTES
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import PORTION
from mirrorless.ports.topics import NewRemoteTopic
from tests.support.flows import make_flow


class OpenedWriter:
    """What a target opened, and with what."""

    def __init__(self, config: Mapping[str, Any], *, transactional_id: str, **more: Any) -> None:
        self.config, self.transactional_id, self.portion = dict(config), transactional_id, more.get("portion")
        self.watched = more.get("watch") is not None
        self.suspect, self.answering, self.used_at = False, True, time.monotonic()

    def answers(self, _: object) -> bool:
        """As the test wants."""
        return self.answering


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OpenedWriter]:
    """All writers that were opened, in order."""
    writers: list[OpenedWriter] = []

    def opening(*arguments: Any, **options: Any) -> OpenedWriter:
        writers.append(OpenedWriter(*arguments, **options))
        return writers[-1]

    monkeypatch.setattr("mirrorless.adapters.kafka.target.KafkaWriter", opening)
    return writers


def deadline() -> float:
    return 30.0


@pytest.fixture
def target() -> KafkaTarget:
    return target_of()


def target_of(**settings: Any) -> KafkaTarget:
    return KafkaTarget(make_flow(**settings), environment="e1")


def batch_size(target: KafkaTarget, opened: list[OpenedWriter]) -> int:
    """Of an ordinary writer that is opened now."""
    target.discard_writers()
    target.writer(deadline)
    return int(opened[-1].config["batch.size"])


def test_a_writer_is_opened_once_and_kept(target: KafkaTarget, opened: list[OpenedWriter]) -> None:
    assert target.writer(deadline) is target.writer(deadline)
    assert [each.transactional_id for each in opened] == ["mirrorless.us-east.eu-west.e1"]
    assert (opened[0].watched, opened[0].portion) == (True, None)


def test_a_careful_writer_has_an_id_of_its_own_one_request_at_a_time_and_a_portion(
    target: KafkaTarget, opened: list[OpenedWriter]
) -> None:
    target.careful_writer(50, deadline)

    (careful,) = opened
    assert careful.transactional_id == "mirrorless.us-east.eu-west.e1.careful"
    assert (careful.config["batch.num.messages"], careful.config["max.in.flight"]) == (50, 1)
    assert (careful.watched, careful.portion) == (False, PORTION)
    assert careful.config["batch.size"] == BATCH_BYTES


def test_a_careful_writer_is_kept_until_another_size_of_batches_is_wanted(
    target: KafkaTarget, opened: list[OpenedWriter]
) -> None:
    first = target.careful_writer(50, deadline)

    assert target.careful_writer(50, deadline) is first
    assert target.careful_writer(10, deadline) is not first
    target.limit_batches(300_000)
    target.careful_writer(10, deadline)
    sizes = [(each.config["batch.num.messages"], each.config["batch.size"]) for each in opened]
    assert sizes == [(50, BATCH_BYTES), (10, BATCH_BYTES), (10, 150_000)]


def test_batches_are_half_of_the_smallest_that_was_refused(target: KafkaTarget, opened: list[OpenedWriter]) -> None:
    assert batch_size(target, opened) == BATCH_BYTES
    target.limit_batches(2 * BATCH_BYTES)
    assert batch_size(target, opened) == BATCH_BYTES // 2
    target.limit_batches(200_001)
    assert batch_size(target, opened) == 100_000


def test_ordinary_batches_have_a_least_size_and_careful_ones_a_byte(
    target: KafkaTarget, opened: list[OpenedWriter]
) -> None:
    target.limit_batches(3)
    target.careful_writer(1, deadline)
    assert opened[-1].config["batch.size"] == 1
    target.limit_batches(1)
    target.careful_writer(1, deadline)

    assert opened[-1].config["batch.size"] == 1
    assert batch_size(target, opened) == LEAST_BATCH_BYTES


def test_only_a_writer_of_transactions_has_their_timeout_and_every_request_ends_before_it(
    opened: list[OpenedWriter],
) -> None:
    for delivery in ("exactly_once", "at_least_once"):
        target_of(delivery=delivery, transaction_timeout_ms=9_000).writer(deadline)

    transactional, plain = (each.config for each in opened)
    assert transactional["transaction.timeout.ms"] == 9_000
    assert "transaction.timeout.ms" not in plain
    assert all(config["socket.timeout.ms"] == 8_500 for config in (transactional, plain))


def test_without_transactions_a_writer_has_no_id(opened: list[OpenedWriter]) -> None:
    target = target_of(delivery="at_least_once")
    target.writer(deadline)
    target.careful_writer(1, deadline)

    assert [each.transactional_id for each in opened] == ["", ""]


def test_fencing_drops_the_writer_that_has_the_id_and_no_other(target: KafkaTarget, opened: list[OpenedWriter]) -> None:
    writer, careful = target.writer(deadline), target.careful_writer(1, deadline)

    target.fence("somebody else's", deadline)
    assert (target.writer(deadline), target.careful_writer(1, deadline)) == (writer, careful)
    target.fence(careful.transactional_id, deadline)
    assert target.writer(deadline) is writer
    again = target.careful_writer(1, deadline)
    assert again is not careful
    target.fence(writer.transactional_id, deadline)
    assert target.writer(deadline) is not writer
    assert target.careful_writer(1, deadline) is again
    fenced = [each.transactional_id for each in opened if not each.watched and each.portion is None]
    assert fenced == ["somebody else's", careful.transactional_id, writer.transactional_id]


def test_what_was_written_without_an_id_needs_no_fence(target: KafkaTarget, opened: list[OpenedWriter]) -> None:
    target.fence("", deadline)

    assert not opened


def test_a_writer_that_is_suspect_or_does_not_answer_after_a_freeze_is_replaced(
    target: KafkaTarget, opened: list[OpenedWriter]
) -> None:
    target.writer(deadline)
    opened[0].answering = False
    target.writer(deadline)
    assert len(opened) == 1
    opened[0].used_at -= PROBE_AFTER_SECONDS + 1
    target.writer(deadline)
    assert len(opened) == 2
    opened[1].used_at -= PROBE_AFTER_SECONDS + 1
    target.writer(deadline)
    assert len(opened) == 2
    opened[1].suspect = True
    target.writer(deadline)
    assert len(opened) == 3


# Remote topics, with the configs that the scheduled refresh would give them


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
def refusing(monkeypatch: pytest.MonkeyPatch) -> KafkaTarget:
    """A target that refuses some configs."""
    Refusing.created.clear()
    monkeypatch.setattr("mirrorless.adapters.kafka.topics.KafkaTopics", Refusing)
    created = Refusing.created
    monkeypatch.setattr(
        KafkaTarget, "partition_count", lambda _, topic, __: created[topic].partitions if topic in created else 0
    )
    return KafkaTarget(make_flow(), environment="e")


def test_a_config_that_the_target_refuses_is_left_out_and_logged(
    refusing: KafkaTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = {f"redpanda.remote.{name}": "true" for name in ("read", "write")}
    configs |= {"cleanup.policy": "compact", "segment.bytes": "2"}

    refusing.create_partitions("us-east.orders", 3, configs, deadline)

    new = Refusing.created["us-east.orders"]
    assert (new.partitions, new.replication_factor) == (3, 2)
    assert new.configs == {"cleanup.policy": "compact", "segment.bytes": "2"}
    line = json.loads(capsys.readouterr().out)
    assert line.pop("trouble") == "created without redpanda.remote.read, redpanda.remote.write: the target refuses it"
    assert line == {"level": "WARNING", "flow": "us-east->eu-west", "topic": "us-east.orders"}

    refusing.create_partitions("us-east.bills", 1, {"segment.bytes": "2"}, deadline)
    assert (capsys.readouterr().out, list(Refusing.created)) == ("", ["us-east.orders", "us-east.bills"])


def test_a_topic_that_is_refused_for_another_reason_is_an_error(
    refusing: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refusing, "create", lambda _, topics, __, **___: {each.name: "denied" for each in topics})

    with pytest.raises(Retriable, match=r"did not create us-east\.orders with 1 partitions: denied"):
        refusing.create_partitions("us-east.orders", 1, {"segment.bytes": "2"}, deadline)


def test_partitions_that_are_refused_are_an_error(refusing: KafkaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing.create_partitions("us-east.orders", 1, {}, deadline)
    monkeypatch.setattr(Refusing, "grow", lambda _, counts, __: dict.fromkeys(counts, "denied"), raising=False)

    with pytest.raises(Retriable, match=r"did not create us-east\.orders with 2 partitions: denied"):
        refusing.create_partitions("us-east.orders", 2, {}, deadline)


class Describing:
    """As much of `AdminClient` as describes one topic: one config of its own, one default."""

    def __init__(self, _: Any) -> None:
        """See `AdminClient`."""

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        """See `AdminClient.list_topics`: of one topic, and in time."""
        assert 0 < timeout < deadline()
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None})})

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, request_timeout: float
    ) -> dict[ConfigResource, Future[Any]]:
        """See `AdminClient.describe_configs`: in time."""
        assert 0 < request_timeout < deadline()
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

    settings = replace(make_flow(), use_defaults_from=defaults_from, config_properties_exclude=("local.*",))
    described = KafkaSource(settings).describe("orders", deadline)

    assert (described.partitions, described.configs) == (1, configs)
