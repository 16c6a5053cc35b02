"""The lab's servers are real: they keep address and data over kill -9, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from lab.servers.artifacts import DEFAULT_KAFKA
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from lab.servers.process import ServerFailed, running
from tests.support.readback import read_topic
from tests.support.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

VERSION = os.environ.get("KAFKA") or DEFAULT_KAFKA
QUIET = {"log_level": 0}  # refused connections are this file's subject


@pytest.fixture(scope="module")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoDbLocal]:
    """One that keeps its tables on disk."""
    server = DynamoDbLocal(folder=tmp_path_factory.mktemp("dynamodb"))
    with running(server):
        yield server


def new_topic(cluster: KafkaCluster, partitions: int = 1) -> str:
    return create_topic(cluster.bootstrap, f"orders-{uuid4().hex[:8]}", partitions)


def produce_in_a_transaction(cluster: KafkaCluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": uuid4().hex, **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.commit_transaction(30)


def committed_values(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    return [seen.content.value for seen in read_topic(cluster.bootstrap, topic)[0]]


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_killed_cluster_keeps_address_and_records_and_is_ready_for_every_partition_at_once(
    clusters: tuple[KafkaCluster, KafkaCluster],
) -> None:
    """Ready is a promise to the caller's first produce, with no retries to hide behind."""
    cluster, other = clusters
    topic, wide = new_topic(cluster), new_topic(cluster, 24)
    produce_in_a_transaction(cluster, topic, [b"before", b"the", b"kill"])
    address, first_pid, others_pid = cluster.bootstrap, cluster.pid, other.pid
    assert first_pid is not None

    cluster.kill()

    assert not cluster.alive
    assert cluster.pid is None
    assert not runs(first_pid)
    assert other.pid == others_pid

    cluster.start()

    outcomes: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "retries": 0, **QUIET})
    for partition in range(24):
        producer.produce(wide, b"x", partition=partition, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(20) == 0
    assert outcomes == [None] * 24
    assert cluster.bootstrap == address
    assert cluster.pid not in (None, first_pid)
    produce_in_a_transaction(cluster, topic, [b"after"])
    # The offset between is the first transaction's marker; it is skipped, and costs no record.
    assert committed_values(cluster, topic) == [b"before", b"the", b"kill", b"after"]


def test_a_record_of_eight_megabytes_is_taken(clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    cluster = clusters[1]
    topic = new_topic(cluster)
    value = os.urandom(8 * 1024 * 1024)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 10_000_000, **QUIET})

    producer.produce(topic, value)

    assert producer.flush(30) == 0
    assert committed_values(cluster, topic) == [value]


def test_a_topic_appears_only_when_it_is_created(clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    """A broker that creates topics by itself would hide a mirror that forgot to."""
    bootstrap = clusters[0].bootstrap
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 1000, **QUIET})

    producer.produce("never-created", b"x")

    assert producer.flush(20) == 0
    assert "never-created" not in AdminClient({"bootstrap.servers": bootstrap, **QUIET}).list_topics(timeout=10).topics


def test_an_item_survives_kill_and_start_at_the_same_address(
    dynamodb: DynamoDbLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "nowhere")  # the lab's client must not look at the operator's own settings
    client = dynamodb.client()
    client.create_table(
        TableName="chain",
        KeySchema=[{"AttributeName": "lane", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "lane", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    client.put_item(TableName="chain", Item={"lane": {"S": "orders-0"}, "next": {"N": "42"}})
    first_pid = dynamodb.pid
    assert first_pid is not None

    dynamodb.kill()
    assert not runs(first_pid)
    dynamodb.start()

    assert dynamodb.pid != first_pid
    found = client.get_item(TableName="chain", Key={"lane": {"S": "orders-0"}}, ConsistentRead=True)
    assert found["Item"]["next"] == {"N": "42"}


def test_every_server_listens_on_loopback_alone(
    clusters: tuple[KafkaCluster, KafkaCluster], dynamodb: DynamoDbLocal
) -> None:
    for server in (*clusters, dynamodb):
        pid = server.pid
        assert pid is not None
        sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
        tables = [Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
        listening = [line.split() for table in tables for line in table if line.split()[3] == "0A"]
        addresses = {fields[1].rpartition(":")[0] for fields in listening if f"socket:[{fields[9]}]" in sockets}

        assert addresses
        assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}, server.title


def test_stop_leaves_no_process_and_a_later_start_finds_the_data(clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    cluster = clusters[1]
    topic = new_topic(cluster)
    produce_in_a_transaction(cluster, topic, [b"kept"])
    pid = cluster.pid
    assert pid is not None
    try:
        cluster.stop()

        assert not cluster.alive
        assert not runs(pid)
        cluster.stop()  # twice is no error
        cluster.start()
        assert committed_values(cluster, topic) == [b"kept"]
    finally:
        cluster.start()


def test_clusters_have_ids_of_their_own(clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    """Though all start from a copy of one formatted folder."""
    admins = [AdminClient({"bootstrap.servers": cluster.bootstrap}) for cluster in clusters]

    assert len({admin.describe_cluster().result(20).cluster_id for admin in admins}) == 2


def test_a_broker_starts_from_the_archive_of_its_classes(clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    loaded = Path(f"/proc/{clusters[0].pid}/maps").read_text()

    assert f"/kafka-{VERSION}-classes-" in loaded


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    cluster = KafkaCluster(
        alias="broken", folder=tmp_path, version=VERSION, properties={"num.network.threads": "a few"}
    )

    with pytest.raises(ServerFailed, match=r"(?s)Kafka .* broken at 127\.0\.0\.1:\d+: it died.*num\.network\.threads"):
        cluster.start()

    assert not cluster.alive
