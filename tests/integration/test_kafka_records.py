"""Internal topics on a real cluster: made once, written, and read back whole; and how far its logs reach."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ListOffsetsResultInfo, ResourceType

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.admin import Call, WarmAdmin
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.clock import deadline_in
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import OffsetAndMetadata
from tests.support.readback import read_topic
from tests.support.topics import create_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(clusters: tuple[KafkaCluster, KafkaCluster]) -> Iterator[KafkaCluster]:
    yield clusters[1]
    clusters[1].start()  # a failed test may have left it dead


@pytest.fixture
def records(cluster: KafkaCluster) -> KafkaRecords:
    return records_of(cluster.bootstrap)


@pytest.fixture
def topic() -> str:
    """A name that no topic has yet."""
    return f"us-east.checkpoints-{uuid4().hex[:8]}.internal"


def records_of(bootstrap: str) -> KafkaRecords:
    return KafkaRecords(
        ClusterSettings(alias="eu-west", bootstrap=bootstrap), flow="us-east->eu-west", client_role="checkpoints"
    )


def ensure(records: KafkaRecords, topic: str, partitions: int = 1, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    records.ensure_topic(topic, partitions=partitions, replication_factor=1, configs=named, deadline=deadline_in(20))


def configs_of(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(10)
    return {name: entry.value for name, entry in entries.items()}


def stored(cluster: KafkaCluster, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of every record of partition 0, as any consumer finds them."""
    return [(seen.content.key, seen.content.value) for seen in read_topic(cluster.bootstrap, topic)[0]]


def open_transaction(cluster: KafkaCluster, topic: str, *partitions: int) -> Producer:
    """A producer that has written one record to each partition, and neither committed nor aborted."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    errors: list[KafkaError | None] = []
    for partition in partitions:
        producer.produce(
            topic, key=b"k", value=b"hidden", partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
    producer.flush(30)
    assert errors == [None] * len(partitions)
    return producer


# Topics


def test_a_missing_topic_is_created_compacted_with_its_configs(
    cluster: KafkaCluster, records: KafkaRecords, topic: str
) -> None:
    ensure(records, topic, segment_ms="60000")

    configs = configs_of(cluster, topic)
    assert (configs["cleanup.policy"], configs["segment.ms"]) == ("compact", "60000")
    assert set(records.ends([(topic, 0), (topic, 1)], deadline_in(10))) == {(topic, 0)}


def test_a_topic_that_is_there_stays_as_it_is(cluster: KafkaCluster, records: KafkaRecords, topic: str) -> None:
    create_topic(cluster.bootstrap, topic, 2)

    ensure(records, topic)

    assert configs_of(cluster, topic)["cleanup.policy"] == "delete"
    assert len(records.ends([(topic, 0), (topic, 1)], deadline_in(10))) == 2


def test_a_topic_that_cannot_be_created_says_why_and_what_to_do(records: KafkaRecords, topic: str) -> None:
    with pytest.raises(Retriable, match=f"did not create {topic}: .*INVALID_REPLICATION_FACTOR.*What to do: give this"):
        records.ensure_topic(topic, replication_factor=9, configs={}, deadline=deadline_in(10))


# Records


def test_records_are_read_back_as_they_were_written(cluster: KafkaCluster, records: KafkaRecords, topic: str) -> None:
    other = f"{topic}.other"
    ensure(records, topic, partitions=2)
    ensure(records, other)

    records.write([(topic, b"k1", b"v1", 1000), (other, b"k", b"", 2000), (topic, b"k2", b"v2", 3000)], deadline_in(20))
    records.write([(topic, b"k1", None, 4000)], deadline_in(20))

    assert stored(cluster, topic) == [(b"k1", b"v1"), (b"k2", b"v2"), (b"k1", None)]
    assert stored(cluster, other) == [(b"k", b"")]
    seen_there = read_topic(cluster.bootstrap, topic)
    assert [(seen.content.timestamp, seen.content.headers) for seen in seen_there[0]] == [
        (1000, ()),
        (3000, ()),
        (4000, ()),
    ]
    assert seen_there[1] == []


def test_a_write_that_is_refused_names_its_topic_and_the_next_one_succeeds(
    cluster: KafkaCluster, records: KafkaRecords, topic: str
) -> None:
    ensure(records, topic, max_message_bytes="1000")

    with pytest.raises(Retriable, match=f"{topic}: the cluster does not take record 0 of 1: .*What to do: "):
        records.write([(topic, b"k", b"x" * 5000, 1)], deadline_in(20))

    records.write([(topic, b"k", b"small", 1)], deadline_in(20))
    assert stored(cluster, topic) == [(b"k", b"small")]


def test_a_write_to_a_topic_that_is_not_there_fails_in_time_and_names_it(records: KafkaRecords, topic: str) -> None:
    with pytest.raises(Retriable, match=f"{topic}-0: 1 records were not acknowledged"):
        records.write([(topic, b"k", b"v", 1)], deadline_in(3))


def test_warm_clients_write_commit_and_read_after_their_broker_was_killed_and_came_back(
    cluster: KafkaCluster, records: KafkaRecords, topic: str
) -> None:
    """A busy broker's coordinator comes back later than one round waits for it: the next round reads."""
    ensure(records, topic)
    groups = KafkaGroups(ClusterSettings(alias="eu-west", bootstrap=cluster.bootstrap), flow="us-east->eu-west")
    place, group = (topic, 0), f"shop-{topic}"

    def stands(offset: int) -> bool:
        with suppress(Retriable):
            states = groups.states([group], deadline_in(20))
            found = groups.committed([group], deadline_in(20))
            return (states, found) == ({group: "empty"}, {group: {place: OffsetAndMetadata(offset)}})
        return False

    def commits(offset: int) -> bool:
        with suppress(Retriable):
            groups.commit(group, {place: OffsetAndMetadata(offset)}, deadline_in(20))
        return stands(offset)

    eventually(lambda: commits(3), "a new cluster has its coordinators")
    records.write([(topic, b"k1", b"v1", 1)], deadline_in(20))
    assert records.ends([(topic, 0)], deadline_in(10)) == {(topic, 0): (0, 1, 1)}

    cluster.kill()
    with pytest.raises(Retriable):
        records.write([(topic, b"k2", b"v2", 2)], deadline_in(2))
    cluster.start()

    records.write([(topic, b"k2", b"v2", 2)], deadline_in(30))
    found = stored(cluster, topic)
    # The failed write may have been done after all.
    assert (found[0], set(found[1:])) == ((b"k1", b"v1"), {(b"k2", b"v2")})
    assert records.ends([(topic, 0)], deadline_in(20)) == {(topic, 0): (0, len(found), len(found))}
    eventually(lambda: stands(3), "the coordinator is back")
    assert commits(4)


# Ends


def test_ends_are_the_start_the_stable_end_and_the_high_watermark(
    cluster: KafkaCluster, records: KafkaRecords, topic: str
) -> None:
    ensure(records, topic, partitions=3)
    records.write([(topic, b"%d" % number, b"v", 1) for number in range(4)], deadline_in(20))
    producer = open_transaction(cluster, topic, 0, 2)

    assert records.ends([(topic, 0), (topic, 1), (topic, 2)], deadline_in(10)) == {
        (topic, 0): (0, 4, 5),
        (topic, 1): (0, 0, 0),
        (topic, 2): (0, 0, 1),
    }
    producer.abort_transaction(30)


@pytest.mark.parametrize(
    "answer",
    [
        KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION),
        KafkaError(KafkaError.UNKNOWN_LEADER_EPOCH),
        KafkaError(KafkaError.FENCED_LEADER_EPOCH),
        KafkaError(KafkaError.OFFSET_NOT_AVAILABLE),
        # As the end of a log it would be below every position, and the lane would be stopped as truncated.
        pytest.param(ListOffsetsResultInfo(OFFSET_INVALID, -1, -1), id="an offset that is none"),
    ],
    ids=lambda error: error.name(),
)
def test_a_read_waits_for_a_leader_that_moves(cluster: KafkaCluster, answer: Any) -> None:
    """The real cluster answers once the stand-in of its answers is used up."""
    admin = WarmAdmin(ClusterSettings(alias="eu-west", bootstrap=cluster.bootstrap), "us-east->eu-west|test")
    left = [answer] * 3

    answers, failures = admin.call_each(["cluster"], _described(left), deadline_in(20), chunk=1)

    assert (list(answers), failures, left) == (["cluster"], {}, [])
    assert answers["cluster"].nodes


def test_a_read_gives_up_a_leader_that_keeps_moving(cluster: KafkaCluster) -> None:
    admin = WarmAdmin(ClusterSettings(alias="eu-west", bootstrap=cluster.bootstrap), "us-east->eu-west|test")
    left = [KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)] * 10_000
    deadline = deadline_in(60)

    answers, failures = admin.call_each(["cluster"], _described(left), deadline, chunk=1)

    assert (answers, [error.name() for error in failures.values()]) == ({}, ["NOT_LEADER_FOR_PARTITION"])
    assert deadline() > 20
    assert left


def _described(answers: list[Any]) -> Call[str]:
    """A description of the cluster behind these answers, which it uses up: errors, or what says nothing."""

    def call(client: AdminClient, keys: list[str], seconds: float) -> dict[str, Future[Any]]:
        if not answers:
            return {key: client.describe_cluster(request_timeout=seconds) for key in keys}
        answered: Future[Any] = Future()
        if isinstance(answer := answers.pop(), KafkaError):
            answered.set_exception(KafkaException(answer))
        else:
            answered.set_result(answer)
        return dict.fromkeys(keys, answered)

    return call


def test_ends_leave_out_what_does_not_exist(records: KafkaRecords, topic: str) -> None:
    ensure(records, topic)

    assert records.ends([], deadline_in(10)) == {}
    assert records.ends([("absent", 0), ("absent", 1)], deadline_in(10)) == {}
    assert records.ends([("absent", 0), (topic, 0), (topic, 7)], deadline_in(10)) == {(topic, 0): (0, 0, 0)}


def test_a_silent_cluster_is_an_error_and_no_empty_answer(topic: str) -> None:
    nobody = records_of("127.0.0.1:1")

    with pytest.raises(Retriable, match="did not describe"):
        nobody.ensure_topic(topic, replication_factor=1, configs={}, deadline=deadline_in(1.5))
    with pytest.raises(Retriable, match="did not open a producer"):
        nobody.write([(topic, b"k", b"v", 1)], deadline_in(1.5))
    with pytest.raises(Retriable, match="did not list where its logs end"):
        nobody.ends([(topic, 0)], deadline_in(1.5))


def test_a_topic_that_is_not_there_has_no_extent_and_no_last_record_for_the_operator(cluster: KafkaCluster) -> None:
    """Whether or not the request names one that is there as well: the client's errors differ."""
    offsets = KafkaOffsets(ClusterSettings(alias="eu-west", bootstrap=cluster.bootstrap), flow="us-east->eu-west")
    topic = create_topic(cluster.bootstrap, f"there-{uuid4().hex[:8]}")

    assert offsets.newest("not-there") is None
    assert offsets.extents([("not-there", 0)]) == {}
    assert offsets.extents([("not-there", 0), (topic, 0)]).keys() == {(topic, 0)}


def test_the_operators_look_at_offsets_waits_for_a_leader_that_moves(
    cluster: KafkaCluster, records: KafkaRecords, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started again knows a newer epoch than a new client's metadata."""
    ensure(records, topic)
    refused: Future[Any] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
    refusals, list_offsets = [refused] * 3, AdminClient.list_offsets

    def moving(client: AdminClient, wanted: dict[Any, Any], **options: Any) -> dict[Any, Future[Any]]:
        return dict.fromkeys(wanted, refusals.pop()) if refusals else list_offsets(client, wanted, **options)

    monkeypatch.setattr(AdminClient, "list_offsets", moving)
    offsets = KafkaOffsets(ClusterSettings(alias="eu-west", bootstrap=cluster.bootstrap), flow="us-east->eu-west")

    assert offsets.extents([(topic, 0)])[topic, 0].end == 0
    assert not refusals


def test_partitions_whose_batches_are_larger_than_a_fetch_are_looked_at_one_right_after_the_other(
    cluster: KafkaCluster, records: KafkaRecords, topic: str
) -> None:
    """A partition that waited for a second until it was fetched again left no time for the last ones."""
    partitions, now = 24, int(time.time() * 1000)
    ensure(records, topic, partitions)
    settings = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 5_000, "batch.size": 1_000_000}
    producer = Producer(settings)
    for number in range(partitions * 200):
        producer.produce(topic, bytes(1_000), b"%d" % number, number % partitions, timestamp=now + number)
    assert producer.flush(30) == 0
    offsets = KafkaOffsets(ClusterSettings(alias="eu-west", bootstrap=cluster.bootstrap), flow="us-east->eu-west")

    found = offsets.oldest_waiting({(topic, partition): 0 for partition in range(partitions)})

    assert found == {(topic, partition): now + partition for partition in range(partitions)}
