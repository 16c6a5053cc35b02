"""Doubts of many lanes after one crash, at a distance: one fence for the dead writer, one look at all lanes."""

from __future__ import annotations

import pytest

from lab.servers.kafka import KafkaCluster
from mirrorless.protocol.hooks import Step
from tests.support.lane_stage import Crash, LaneStage, at_step, crash
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/protocol/test_protocol.py::test_the_lanes_of_one_crash_cost_one_fence_of_their_writer"
)

LANES = 24


@pytest.mark.parametrize("step", some_of(("prepared", "committed"), "committed", others=HELD))
def test_the_lanes_of_one_crash_are_settled_together(far: LaneStage, distant: KafkaCluster, step: Step) -> None:
    """A producer, an admin client and a consumer for each lane took 89 s for 48 lanes at 80 ms, beyond a deadline."""
    far.create(far.source, far.topic, partitions=LANES)
    for partition in range(LANES):
        far.write(b"%d" % partition, partition=partition)
    event = far.event()
    with at_step(step, crash), pytest.raises(Crash):
        far.replicate(far.environment(), event)
    successor = far.environment()
    distant.link.round_trip_ms = 80
    before = distant.link.connections

    outcome = far.replicate(successor, event, seconds=60.0)

    opened = distant.link.connections - before
    assert len(outcome.runs) == (LANES if step == "prepared" else 0)
    assert outcome.stopped == {}
    assert opened <= 20, "of the fence, of the look, and of the successor's own writer"
    distant.link.round_trip_ms = 0
    far.assert_mirrored()
