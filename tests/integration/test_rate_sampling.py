"""Rates of topics on a real cluster: what is produced in the window is what is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

import cli.plan
from cli.main import main
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.rates import KafkaRates
from mirrorless.cost.rates import READS, SampledRates, sample_rates
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from tests.support.lane_stage import ORDERED
from tests.support.topics import create_topic

pytestmark = pytest.mark.integration

CONFIGURATION = """
clusters:
  us-east: {{bootstrap.servers: ["{source}"], authentication: {{type: plaintext}}}}
  eu-west: {{bootstrap.servers: ["{target}"], authentication: {{type: plaintext}}}}
flows:
  us-east->eu-west:
    topics: [{topics}]
"""


@pytest.fixture
def source(clusters: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    return clusters[0]


def created(cluster: KafkaCluster, partitions: int) -> str:
    """A new topic."""
    return create_topic(cluster.bootstrap, f"rates-{uuid4().hex[:8]}", partitions)


def producer(cluster: KafkaCluster, **more: str) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap, **ORDERED, **more})


def sampled(
    cluster: KafkaCluster, topics: dict[str, int], in_each_part: Callable[[int], None] = lambda _: None
) -> SampledRates:
    """The rates of topics, while this is done in each part of the window."""
    parts = iter(range(READS))

    def wait(_: float) -> None:
        in_each_part(next(parts))

    rates = KafkaRates(ClusterSettings(alias="us-east", bootstrap=cluster.bootstrap), flow="us-east->eu-west")
    return sample_rates(rates, topics, seconds=0.0, clock=time.monotonic, wait=wait)


def test_a_rate_is_the_records_and_bytes_that_were_produced_in_the_window(source: KafkaCluster) -> None:
    """100 records in each part, on three partitions, of which only what came in the window counts."""
    orders, silent, empty = created(source, 3), created(source, 2), created(source, 1)
    client = producer(source)

    def produce(topic: str, count: int) -> None:
        for number in range(count):
            client.produce(topic, key=b"k" * 5, value=b"v" * 90, headers={"head": b"h"}, partition=number % 3 % 2)
        assert client.flush(20) == 0

    produce(orders, 250)
    produce(silent, 10)

    found = sampled(source, {orders: 3, silent: 2, empty: 1}, lambda _: produce(orders, 100))

    moving, still, void = found.topics
    assert moving.records_per_second * found.seconds == pytest.approx(100 * READS)
    assert moving.average_record_bytes == 100
    assert moving.bytes_per_second * found.seconds == pytest.approx(100 * 100 * READS)
    assert moving.largest_record_bytes == 100
    assert moving.peak_bytes_per_second >= moving.bytes_per_second
    assert (still.records_per_second, still.average_record_bytes) == (0, 100)
    assert (void.records_per_second, void.largest_record_bytes) == (0, 0)
    assert found.unseen == ()


def test_the_markers_of_transactions_and_what_they_aborted_are_no_records(source: KafkaCluster) -> None:
    """Of four offsets one is a visible record: it and its marker, an aborted one and its marker."""
    topic = created(source, 1)
    client = producer(source, **{"transactional.id": topic})
    client.init_transactions(20)

    def transactions(_: int) -> None:
        for abort in (False, True) * 5:
            client.begin_transaction()
            client.produce(topic, value=b"v" * 50, partition=0)
            if abort:
                assert client.flush(20) == 0
                client.abort_transaction(20)
            else:
                client.commit_transaction(20)

    found = sampled(source, {topic: 1}, transactions)

    (rate,) = found.topics
    # The newest 50 offsets begin and end within a group of four: one record more or less in twelve.
    assert rate.records_per_second * found.seconds == pytest.approx(5 * READS, rel=0.15)
    assert rate.average_record_bytes == 50


def test_a_few_large_records_are_enough(source: KafkaCluster) -> None:
    topic = created(source, 1)
    client = producer(source)

    def produce(_: int) -> None:
        for _ in range(5):
            client.produce(topic, value=b"v" * 300_000, partition=0)
        assert client.flush(20) == 0

    found = sampled(source, {topic: 1}, produce)

    (rate,) = found.topics
    assert rate.records_per_second * found.seconds == pytest.approx(5 * READS)
    assert rate.average_record_bytes == 300_000


def test_a_topic_that_is_not_there_ends_the_sample(source: KafkaCluster) -> None:
    with pytest.raises(Retriable, match="nowhere"):
        sampled(source, {f"nowhere-{uuid4().hex[:8]}": 1})


def test_the_command_plans_what_it_measures_and_asks_the_target_for_its_partitions(
    clusters: tuple[KafkaCluster, KafkaCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = clusters
    topic, other = created(source, 2), created(source, 3)
    create_topic(target.bootstrap, f"us-east.{topic}")
    config = tmp_path / "replication.yaml"
    config.write_text(
        CONFIGURATION.format(source=source.bootstrap, target=target.bootstrap, topics=f"{topic}, {other}, missing")
    )
    client = producer(source)

    def progress(what: str, seconds: float) -> Callable[[float], None]:
        assert (what, seconds) == ("2 topics of us-east", 0.5)

        def wait(_: float) -> None:
            for _ in range(10):
                client.produce(topic, value=b"v" * 20, partition=1)
            assert client.flush(20) == 0

        return wait

    monkeypatch.setattr(cli.plan, "progress", progress)

    code = main(["plan", "us-east->eu-west", "--config", str(config), "--sample-seconds", "0.5", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    rates = {each["topic"]: each for each in found["topics"]}
    assert set(rates) == {topic, other}
    assert rates[topic]["records_per_second"] * found["sampled_seconds"] == pytest.approx(10 * READS)
    assert rates[topic]["average_record_bytes"] == 20
    assert rates[other]["records_per_second"] == 0
    assert (found["target"]["partitions"], found["target"]["new_partitions"]) == (5, 4)
    assert "not on the source, and not in the plan: missing" in found["notes"]


def test_a_sample_is_the_records_of_its_range_and_the_batches_that_it_lies_in(source: KafkaCluster) -> None:
    topic = created(source, 2)
    client = producer(source, **{"linger.ms": "1000"})
    for first, end in ((0, 3), (3, 23), (23, 24)):
        for number in range(first, end):
            client.produce(topic, value=b"v" * (1_000 + number), partition=1)
        assert client.flush(20) == 0
    rates = KafkaRates(ClusterSettings(alias="us-east", bootstrap=source.bootstrap), flow="us-east->eu-west")

    found = rates.sample({(topic, 0): (0, 0), (topic, 1): (10, 24)})[topic]

    assert (found.records, found.offsets, found.bytes) == (14, 14, sum(range(1_010, 1_024)))
    assert (found.largest, found.batches) == (1_023, 2)
    assert 21_000 < found.batch_bytes < 22_300
