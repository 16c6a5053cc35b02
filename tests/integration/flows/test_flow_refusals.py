"""One lane cannot go on: the others do, and nothing is dropped for it."""

from __future__ import annotations

import random

import pytest
from confluent_kafka.admin import NewTopic

from lab.cloud import create_topics
from mirrorless.chain.lane_state import RUNNING, LaneState, LeftOut
from tests.support.flow_stage import PARTITIONS, Stage
from tests.support.readback import await_settled, read_topic
from tests.support.tries import some_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/protocol/test_protocol.py::test_a_refused_record_stops_its_lane_and_no_other",
    "tests/integration/flows/test_flow_refusals.py::test_a_record_that_the_target_refuses_stops_its_lane_while_the_others_of_the_batch_go_on",
)

TOO_LARGE = random.Random(1).randbytes(20_000)


@pytest.mark.parametrize("flow", some_of(("stage", "stage_back"), "stage", others=HELD))
def test_a_record_that_the_target_refuses_stops_its_lane_while_the_others_of_the_batch_go_on(
    flow: str, request: pytest.FixtureRequest
) -> None:
    """C: records up to the refused one arrive, it and all later ones of its lane wait, and the lane names it.

    Forth with a partial batch response; back without one, where the whole batch is delivered again.
    """
    stage: Stage = request.getfixturevalue(flow)
    small = {"max.message.bytes": "10000"}
    create_topics(stage.target, [NewTopic(stage.remote_topic, PARTITIONS, 1, config=small)])
    stage.lab.mappings.hold(stage.uuid)
    stage.write([(0, b"") for _ in range(5)] + [(0, TOO_LARGE)] + [(0, b"") for _ in range(5)])
    stage.write([(1, b"") for _ in range(10)])
    stage.lab.mappings.release(stage.uuid)

    lanes = [stage.lane(partition) for partition in range(PARTITIONS)]
    eventually(lambda: stage.orders.read(lanes).get(lanes[0], RUNNING).stop is not None, "the lane stops")
    eventually(lambda: stage.chains.heads(lanes)[lanes[1]].position >= 10, "the other lane goes on")
    state = stage.orders.read(lanes)[lanes[0]]
    await_settled(stage.target, stage.remote_topic)
    arrived = {partition: len(seen) for partition, seen in read_topic(stage.target, stage.remote_topic).items()}
    assert arrived == {0: 5, 1: 10}
    assert state.stop is not None
    assert (state.stop.reason, state.stop.upstream_offset) == ("refused", 5)
    assert stage.orders.read(lanes)[lanes[1]] == LaneState(begun=0)

    # The operator leaves out exactly this record; everything else follows.
    stage.orders.quarantine(lanes[0], *LeftOut.each(5))
    stage.await_replicated()
    await_settled(stage.target, stage.remote_topic)
    source, target = read_topic(stage.source, stage.topic), read_topic(stage.target, stage.remote_topic)
    kept = [seen.content for seen in source[0] if seen.offset != 5]
    assert [seen.content for seen in target[0]] == kept
    assert [seen.content for seen in target[1]] == [seen.content for seen in source[1]]


@HELD
def test_a_stopped_lane_does_not_hold_up_later_records_of_the_others(stage: Stage) -> None:
    """With a partial batch response the mapping delivers the other partitions on, again and again."""
    small = {"max.message.bytes": "10000"}
    create_topics(stage.target, [NewTopic(stage.remote_topic, PARTITIONS, 1, config=small)])
    stage.write([(0, TOO_LARGE)])
    eventually(
        lambda: stage.orders.read([stage.lane(0)]).get(stage.lane(0), RUNNING).stop is not None, "the lane stops"
    )

    for _ in range(3):
        stage.write([(1, b"") for _ in range(5)])
    eventually(lambda: _visible(stage, 1) == 15, "the other lane goes on")

    stage.orders.quarantine(stage.lane(0), *LeftOut.each(0))
    stage.await_replicated()
    assert _visible(stage, 0) == 0


def _visible(stage: Stage, partition: int) -> int:
    await_settled(stage.target, stage.remote_topic)
    return len(read_topic(stage.target, stage.remote_topic)[partition])
