"""The inspection of a lane before a reconciliation."""

from __future__ import annotations

from typing import Any, cast

from mirrorless.lane import Lane
from mirrorless.reconcile.findings import InspectTask
from mirrorless.reconcile.inspect import LaneView
from mirrorless.settings import ClusterSettings, FlowSettings
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, run


def test_a_lane_whose_chain_lost_its_end_is_left_alone() -> None:
    """What is counted from there on would be copied back although it came from the source."""
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10)), run(0, 1, lane=Lane(FLOW, LANE.topic, 1), attempt="beside")])
    chains.replace_link(chains.of(LANE)[0], None)
    unread = cast("Any", None)
    view = LaneView(
        chains=chains.beside(),
        states=MemoryLaneStates(),
        target=unread,
        source_log=unread,
        target_log=unread,
        source_ends=unread,
        target_ends=unread,
        transactional=True,
    )

    cluster = ClusterSettings(alias="any", bootstrap="any:9092")
    settings = FlowSettings(flow=str(FLOW), source=cluster, target=cluster)

    found = view.inspect(InspectTask(settings=settings, topic=LANE.topic, partition=0, remote_topic="us-east.orders"))

    assert "has expired" in found.differs
