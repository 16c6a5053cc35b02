"""The watch for lanes that stand still, on a real source and a real chain."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from lab.audit.stuck_lanes import LaneWatch
from lab.cloud import Lab
from lab.servers.dynamodb import DynamoDbLocal
from tests.support.lane_stage import LaneStage

pytestmark = pytest.mark.integration


def watch_of(stage: LaneStage, dynamodb: DynamoDbLocal, written: dict[int, int]) -> LaneWatch:
    there: Any = SimpleNamespace(
        clusters={stage.source.alias: stage.source}, dynamodb=dynamodb, tables=stage.settings.tables
    )
    return LaneWatch(cast("Lab", there), stage.settings.name, stage.topic, lambda: written)


@pytest.mark.soak("tests/unit/lab/test_audit.py::test_a_lane_is_stuck_while_records_wait_and_its_position_stays")
def test_a_lane_is_stuck_until_its_run_is_committed(stage: LaneStage, dynamodb: DynamoDbLocal) -> None:
    stage.create(stage.source, stage.topic)
    written: dict[int, int] = {}
    watch = watch_of(stage, dynamodb, written)
    stage.write(b"0", b"1", b"2")
    written[0] = 3

    watch.look()
    watch.look()
    stage.replicate(stage.environment(), stage.event())
    watch.look()
    watch.look()

    (stuck,) = watch.finish()
    assert stuck.partition == 0
    assert stuck.began < stuck.ended


def test_records_of_an_open_transaction_do_not_wait(stage: LaneStage, dynamodb: DynamoDbLocal) -> None:
    stage.create(stage.source, stage.topic)
    producer = Producer({"bootstrap.servers": stage.source.bootstrap, "transactional.id": stage.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(stage.topic, b"open")
    assert producer.flush(20) == 0
    watch = watch_of(stage, dynamodb, {0: 1})

    watch.look()
    assert watch.times.end(0.0) == []
    producer.commit_transaction(20)
    deadline = time.monotonic() + 20
    while not watch.times.end(0.0):
        assert time.monotonic() < deadline, "the transaction's marker is not written"
        watch.look()

    assert [each.partition for each in watch.finish()] == [0]
