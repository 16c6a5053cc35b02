"""The application that the demonstration moves: what it counts as read is what its group has committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from lab.cloud import create_topics
from lab.drills.group_move import Application, PartitionKey
from lab.drills.workload import SHAPES, Workload
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.flow.settings import ClusterSettings

pytestmark = pytest.mark.integration

PARTITIONS = 2


@pytest.fixture
def topic(clusters: tuple[KafkaCluster, KafkaCluster]) -> str:
    name = f"orders-{uuid4().hex[:8]}"
    create_topics(clusters[0].bootstrap, [NewTopic(name, PARTITIONS, 1)])
    return name


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def test_a_group_that_leaves_and_comes_back_reads_each_record_once(
    clusters: tuple[KafkaCluster, KafkaCluster], topic: str
) -> None:
    bootstrap = clusters[0].bootstrap
    application = Application(f"shop-{topic}")
    places = {(topic, partition) for partition in range(PARTITIONS)}
    produce(bootstrap, topic, 100)

    application.read(bootstrap, [topic], until=lambda _: application.read_count(bootstrap) > 0)
    produce(bootstrap, topic, 100)
    application.read(bootstrap, [topic], until=lambda ends: ends.keys() >= places)

    assert application.reads[bootstrap] == {(place, offset): 1 for place in places for offset in range(100)}
    assert application.committed(bootstrap, places) == dict.fromkeys(places, 100)
    assert application.committed(bootstrap, [(topic, 5)]) == {}
    assert application.topics(bootstrap) == {topic}


@pytest.mark.soak(
    "tests/integration/test_lab_demo.py::test_the_demonstration_breaks_two_things_moves_a_group_and_finds_nothing_missing_or_read_twice"
)
def test_a_broker_killed_under_it_makes_it_read_nothing_twice_and_miss_nothing(
    clusters: tuple[KafkaCluster, KafkaCluster], topic: str
) -> None:
    """Whatever becomes of a commit under way, the application must not be what the demonstration's count finds."""
    cluster = clusters[0]
    application = Application(f"shop-{topic}")
    places = {(topic, partition) for partition in range(PARTITIONS)}
    produce(cluster.bootstrap, topic, 2_000)
    killed = threading.Event()

    def finished(ends: Mapping[PartitionKey, int]) -> bool:
        if not killed.is_set() and application.read_count(cluster.bootstrap):
            killed.set()
            cluster.kill()
            cluster.begin_start()
        return all(ends.get(place, 0) == 1_000 for place in places)

    application.read(cluster.bootstrap, [topic], until=finished)

    cluster.wait_ready()
    assert killed.is_set()
    assert application.reads[cluster.bootstrap] == {(place, offset): 1 for place in places for offset in range(1_000)}


def test_the_group_is_gone_from_the_cluster_that_it_has_left(
    clusters: tuple[KafkaCluster, KafkaCluster], topic: str
) -> None:
    """Nobody may commit for a group with members: a group that lingered would delay its own move."""
    bootstrap = clusters[0].bootstrap
    application = Application(f"shop-{topic}")
    produce(bootstrap, topic, 10)

    application.read(bootstrap, [topic], until=lambda _: application.read_count(bootstrap) == 10)

    groups = KafkaGroups(ClusterSettings(alias="source", bootstrap=bootstrap), flow="test")
    assert groups.states([application.group], lambda: 10) == {application.group: "empty"}


def test_an_application_whose_producer_is_fenced_goes_on_with_another(
    clusters: tuple[KafkaCluster, KafkaCluster], topic: str
) -> None:
    """As a cluster does with a transaction that stood still for longer than its timeout, on a machine under load."""
    bootstrap = clusters[0].bootstrap
    shapes = {"payments": SHAPES["payments"]}
    workload = Workload(bootstrap, records=2_000, seed=1, seconds=4, shapes=shapes, name=lambda name: f"{topic}-{name}")
    workload.create_topics()
    with ThreadPoolExecutor() as pool:
        producing = pool.submit(workload.produce)
        while workload.progress < 0.25:
            assert not producing.done()
            time.sleep(0.01)  # between two looks; what is waited for ends, or fails
        other = Producer({"bootstrap.servers": bootstrap, "transactional.id": workload.transactional_id})
        other.init_transactions(60)

        producing.result(120)

    assert workload.progress >= 1
    # It came back: the other one is fenced in its turn.
    other.begin_transaction()
    other.produce(f"{topic}-payments", b"late")
    with pytest.raises(KafkaException):
        other.commit_transaction(60)
