"""A cluster behind a link: clients are cut off from it, and it works on."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lab.servers.kafka import KafkaCluster

pytestmark = pytest.mark.integration


def brokers(bootstrap: str, timeout: float) -> list[str]:
    found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=timeout).brokers
    return [f"{each.host}:{each.port}" for each in found.values()]


def test_a_cut_link_keeps_clients_away_from_a_cluster_that_works(distant: KafkaCluster) -> None:
    before = distant.link.connections

    assert brokers(distant.bootstrap, 20) == [distant.bootstrap]
    assert distant.link.connections > before
    assert brokers(distant.direct, 20) == [distant.direct]

    distant.link.cut()
    try:
        with pytest.raises(KafkaException):
            brokers(distant.bootstrap, 0.5)
        assert brokers(distant.direct, 20) == [distant.direct]
        distant.kill()
        distant.start()  # ready as it was without the link
    finally:
        distant.link.restore()

    assert brokers(distant.bootstrap, 20) == [distant.bootstrap]


def test_brokers_do_not_call_each_other_through_the_link(distant: KafkaCluster) -> None:
    settings = (distant.log.parent / "server.properties").read_text().splitlines()

    assert f"advertised.listeners=PLAINTEXT://{distant.bootstrap},BESIDE://{distant.direct}" in settings
    assert "inter.broker.listener.name=BESIDE" in settings
