"""The demonstration is the first thing that a stranger runs: it shows what it says, and leaves nothing running."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from lab.cloud import create_topics
from lab.drills.group_move import Application
from lab.drills.workload import SHAPES, Workload
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.flow.settings import ClusterSettings

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
FINDINGS = ("lost", "duplicated", "reordered", "different", "mistranslated")


def test_the_demonstration_breaks_two_things_moves_a_group_and_finds_nothing_missing_or_read_twice(
    tmp_path: Path,
) -> None:
    report = tmp_path / "report.json"

    ended = subprocess.run(
        [sys.executable, "-m", "lab", "demo", "--records", "3000", "--seconds", "12", "--report", str(report)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "fault 1" in ended.stdout
    assert "fault 2" in ended.stdout
    told = json.loads(report.read_text())
    assert {finding: told["totals"][finding] for finding in FINDINGS} == dict.fromkeys(FINDINGS, 0)
    assert told["totals"]["records"] == sum(row["source"] for row in told["rows"]) > 3000
    assert {row["flow"] for row in told["rows"]} == {"us-east->eu-west", "eu-west->us-east"}
    assert {row["topic"] for row in told["rows"]} == {"orders", "payments", "customers", "audit-log"}
    group = told["groups"]
    assert (group["reread"], group["skipped"], group["strays"]) == (0, 0, 0)
    # It read on both sides, and each record on one of them.
    assert group["read_on"].keys() == {"us-east", "eu-west"}
    assert all(group["read_on"].values())
    read = {"orders", "payments"}
    assert sum(group["read_on"].values()) == group["records"]
    rows = [row for row in told["rows"] if row["flow"] == "us-east->eu-west" and row["topic"] in read]
    assert group["records"] == sum(row["source"] for row in rows)


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


def test_a_group_that_leaves_and_comes_back_reads_each_record_once_and_is_gone_from_where_it_left(
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
    # Nobody may commit for a group with members: a group that lingered would delay its own move.
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
        with workload._writing:  # between two bursts: whoever comes next fences this one, and none does meanwhile
            other.init_transactions(60)

        producing.result(120)

    assert workload.progress >= 1
    # It came back: the other one is fenced in its turn.
    other.begin_transaction()
    other.produce(f"{topic}-payments", b"late")
    with pytest.raises(KafkaException):
        other.commit_transaction(60)
