"""A cluster from Kafka 3.9.1 to another version on its own data, target of one flow and source of the other.

It comes last in this folder: the tests before it run between the two versions.
"""

from __future__ import annotations

import threading

import pytest

from lab.servers.artifacts import DEFAULT_KAFKA
from tests.support.flow_stage import Stage
from tests.support.kafka_upgrade import features, raise_features, roll

pytestmark = pytest.mark.integration


def test_an_upgrade_of_kafka_under_both_flows_loses_repeats_and_reorders_nothing(
    stage: Stage, stage_back: Stage
) -> None:
    """A, B: clients reconnect to brokers with other features; transactions under way are settled as after a kill."""
    lab, cluster = stage.lab, stage.lab.clusters["eu-west"]
    assert cluster.version.startswith("3.9")
    stage_back.produce(50)
    done = threading.Event()

    def keep_producing() -> None:
        while not done.wait(0.5):
            stage.produce(10)

    producing = threading.Thread(target=keep_producing)
    producing.start()
    try:
        roll(cluster, DEFAULT_KAFKA, supervisor=lab.supervisor)
        before = features(cluster)
        raise_features(cluster, "4.1")
    finally:
        done.set()
        producing.join()
    stage_back.produce(50)

    for each in (stage, stage_back):
        each.await_replicated()
        each.verify()
    assert (before["transaction.version"], features(cluster)["transaction.version"]) == ("0", "2")
