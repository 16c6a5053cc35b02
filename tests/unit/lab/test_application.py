"""The application of the drills: a member of a group whose coordinator comes back while it joins."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Producer

from lab.drills.group_move import Application
from tests.support.mock_broker import MockBroker

OFFSET_FETCH = 9


@pytest.mark.parametrize("refusal", [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_a_member_reads_though_the_coordinator_that_it_asks_for_its_offsets_is_being_moved(refusal: int) -> None:
    with MockBroker() as broker:
        broker.create_topic("orders", 2)
        bootstrap = broker.config["bootstrap.servers"]
        producer = Producer({"bootstrap.servers": bootstrap})
        for partition in (0, 1):
            producer.produce("orders", b"one", partition=partition)
        assert not producer.flush(10)
        application, end = Application("shop"), time.monotonic() + 30
        broker.answer_next(OFFSET_FETCH, (refusal, 0))

        application.read(bootstrap, ["orders"], until=lambda ends: len(ends) == 2 or time.monotonic() > end)

    assert application.read_count(bootstrap) == 2
