"""Consumer groups of both kinds on a real cluster: what they are, what they committed, and whose offsets we may set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ListConsumerGroupsResult

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import GroupIsActive, OffsetAndMetadata
from tests.support.topics import create_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

both_kinds = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def within(seconds: float) -> Deadline:
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()


@pytest.fixture
def cluster(clusters: tuple[KafkaCluster, KafkaCluster]) -> Iterator[KafkaCluster]:
    yield clusters[1]
    clusters[1].start()  # a failed test may have left it dead


@pytest.fixture
def groups(cluster: KafkaCluster) -> KafkaGroups:
    """Of a cluster that knows its coordinators: a new one makes their topic when the first group comes."""
    left = within(60)
    while True:
        try:
            groups_of(cluster.bootstrap).committed(["the-first"], within(10))
            return groups_of(cluster.bootstrap)
        except Retriable:
            assert left() > 0, "the cluster found no coordinator"


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    return create_topic(cluster.bootstrap, f"orders-{uuid4().hex[:8]}", 3)


@pytest.fixture
def group() -> str:
    return f"billing-{uuid4().hex[:8]}"


def groups_of(bootstrap: str) -> KafkaGroups:
    return KafkaGroups(ClusterSettings(alias="eu-west", bootstrap=bootstrap), flow="us-east->eu-west")


@contextmanager
def member(cluster: KafkaCluster, group: str, topic: str, protocol: str, **options: Any) -> Iterator[Consumer]:
    """A consumer of the topic that has been given partitions."""
    if protocol == "consumer" and cluster.version.startswith("3."):
        pytest.skip("Kafka 3 has KIP-848 only as a preview that is switched off")
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            **options,
        }
    )
    try:
        consumer.subscribe([topic])
        left = within(30)
        while not consumer.assignment():
            assert left() > 0, f"{group} was given no partition"
            consumer.poll(0.1)
        yield consumer
    finally:
        consumer.close()


@pytest.fixture
def open_transaction(cluster: KafkaCluster, group: str, topic: str) -> Iterator[Callable[[int], Producer]]:
    """Commits an offset of partition 0 for the group in a transaction that stays open."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": group})
    producer.init_transactions(30)

    def begin(offset: int) -> Producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, offset)],
            consumer.consumer_group_metadata(),
            30,
        )
        return producer

    yield begin
    consumer.close()


# What there is


@both_kinds
def test_a_group_is_active_while_it_has_a_member_and_then_empty(
    cluster: KafkaCluster, groups: KafkaGroups, group: str, topic: str, protocol: str
) -> None:
    with member(cluster, group, topic, protocol):
        assert groups.states([group], within(10)) == {group: "active"}
        assert group in groups.names(within(10))

    eventually(lambda: groups.states([group], within(10)) == {group: "empty"}, "its member has left")
    assert group in groups.names(within(10))


def test_a_static_member_that_was_closed_stays_for_its_session_time_out(
    cluster: KafkaCluster, groups: KafkaGroups, group: str, topic: str
) -> None:
    options: dict[str, Any] = {"group.instance.id": "shop-1", "session.timeout.ms": 6_000}
    other = f"{group}-other"
    with member(cluster, other, topic, "classic"), member(cluster, group, topic, "classic", **options):
        assert groups.static([group, other], within(10)) == {group}

    closed = time.monotonic()
    assert groups.states([group], within(10)) == {group: "active"}
    assert groups.static([group], within(10)) == {group}
    while groups.states([group], within(10)) != {group: "empty"}:
        assert time.monotonic() < closed + 60
        time.sleep(0.2)  # between two looks at a condition with a deadline
    assert groups.static([group], within(10)) == set()


def test_a_group_that_only_ever_was_committed_for_is_listed_and_empty_and_an_unknown_one_is_absent(
    groups: KafkaGroups, group: str, topic: str
) -> None:
    assert groups.states([group], within(10)) == {group: "absent"}
    assert groups.committed([group], within(10)) == {group: {}}
    assert group not in groups.names(within(10))

    groups.commit(group, {(topic, 0): OffsetAndMetadata(7)}, within(10))
    assert group in groups.names(within(10))
    assert groups.states([group], within(10)) == {group: "empty"}

    assert (groups.states([], within(10)), groups.committed([], within(10))) == ({}, {})


# What was committed


def test_more_groups_than_one_chunk_are_in_one_answer(groups: KafkaGroups, group: str, topic: str) -> None:
    many = [f"{group}-{number}" for number in range(230)]
    for number in (0, 100, 229):
        groups.commit(many[number], {(topic, 0): OffsetAndMetadata(number)}, within(10))

    found = groups.committed(many, within(30))
    states = groups.states(many, within(30))

    assert found.keys() == set(many), "in whatever order: one that a busy broker does not answer at first comes later"
    assert {name: each for name, each in found.items() if each} == {
        many[number]: {(topic, 0): OffsetAndMetadata(number)} for number in (0, 100, 229)
    }
    assert [name for name, state in states.items() if state == "empty"] == [many[0], many[100], many[229]]


def test_a_group_whose_offsets_are_in_an_open_transaction_has_no_answer_and_hides_no_other(
    groups: KafkaGroups, group: str, topic: str, open_transaction: Callable[[int], Producer]
) -> None:
    other = f"{group}-other"
    groups.commit(group, {(topic, 0): OffsetAndMetadata(1), (topic, 1): OffsetAndMetadata(1)}, within(10))
    groups.commit(other, {(topic, 0): OffsetAndMetadata(2)}, within(10))

    producer = open_transaction(5)
    assert groups.committed([group, other], within(10)) == {other: {(topic, 0): OffsetAndMetadata(2)}}

    producer.commit_transaction(30)
    expected = {(topic, 0): OffsetAndMetadata(5), (topic, 1): OffsetAndMetadata(1)}
    eventually(lambda: groups.committed([group], within(10)) == {group: expected}, "the marker is written")


# Committing for a group


@both_kinds
def test_offsets_come_with_their_metadata_and_a_sleeping_group_goes_on_where_it_was_committed_for(
    cluster: KafkaCluster, groups: KafkaGroups, group: str, topic: str, protocol: str
) -> None:
    with member(cluster, group, topic, protocol) as consumer:
        offsets = [TopicPartition(topic, 0, 5, "größe"), TopicPartition(topic, 1, 0)]
        consumer.commit(offsets=offsets, asynchronous=False)

        # A place without an offset, here partition 2, is left out.
        known = {(topic, 0): OffsetAndMetadata(5, "größe"), (topic, 1): OffsetAndMetadata(0, "")}
        assert groups.committed([group], within(10)) == {group: known}

    others = {(topic, 0): OffsetAndMetadata(9, "from us-east"), (topic, 2): OffsetAndMetadata(0)}
    groups.commit(group, others, within(10))

    assert groups.committed([group], within(10)) == {group: known | others}
    with member(cluster, group, topic, protocol) as consumer:
        assert [at.offset for at in consumer.committed([TopicPartition(topic, 0)], 10)] == [9]


@both_kinds
def test_nothing_is_committed_for_an_active_group(
    cluster: KafkaCluster, groups: KafkaGroups, group: str, topic: str, protocol: str
) -> None:
    with member(cluster, group, topic, protocol) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)

        # The topic that is not there has another error, which must not hide the reason.
        with pytest.raises(GroupIsActive, match=f"group {group}: only its members may commit"):
            groups.commit(group, {("absent", 0): OffsetAndMetadata(9), (topic, 0): OffsetAndMetadata(9)}, within(10))

        assert groups.committed([group], within(10)) == {group: {(topic, 0): OffsetAndMetadata(1)}}


def test_one_refused_place_is_named_and_the_others_are_committed(groups: KafkaGroups, group: str, topic: str) -> None:
    with pytest.raises(Retriable, match="did not commit absent-4: "):
        groups.commit(group, {(topic, 0): OffsetAndMetadata(3), ("absent", 4): OffsetAndMetadata(3)}, within(10))

    assert groups.committed([group], within(10)) == {group: {(topic, 0): OffsetAndMetadata(3)}}


# A cluster that goes away


def test_groups_are_listed_once_a_broker_has_loaded_them(
    groups: KafkaGroups, group: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups.commit(group, {(topic, 0): OffsetAndMetadata(3)}, within(10))
    loading: list[Exception] = [KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))] * 3
    listing = AdminClient.list_consumer_groups

    def still_loading(client: AdminClient, **how: Any) -> Future[ListConsumerGroupsResult]:
        """The answer while a broker loads its groups: no exception, but an error beside an empty list."""
        if not loading:
            return listing(client, **how)
        answered: Future[ListConsumerGroupsResult] = Future()
        answered.set_result(ListConsumerGroupsResult([], [loading.pop()]))
        return answered

    monkeypatch.setattr(AdminClient, "list_consumer_groups", still_loading)

    assert groups.states([group], within(20)) == {group: "empty"}
    assert loading == []


def test_a_silent_cluster_is_an_error_and_no_empty_answer() -> None:
    nobody = groups_of("127.0.0.1:1")

    with pytest.raises(Retriable, match="did not list its groups"):
        nobody.names(within(1.5))
    with pytest.raises(Retriable, match="did not list its groups"):
        nobody.states(["billing"], within(1.5))
    with pytest.raises(Retriable, match="did not list committed offsets"):
        nobody.committed(["billing"], within(1.5))
    with pytest.raises(Retriable, match="did not commit its offsets"):
        nobody.commit("billing", {("orders", 0): OffsetAndMetadata(1)}, within(1.5))
