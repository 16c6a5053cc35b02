"""The inspection of a lane before a reconciliation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec.structs import replace

from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import Chunk, OffsetRange
from mirrorless.lane import Lane
from mirrorless.ports.kafka import Deadline
from mirrorless.reconcile.findings import InspectTask, LaneInspection, LaneNames, OrphanTask
from mirrorless.reconcile.inspect import LaneView, still_written
from mirrorless.reconcile.orphans import Stretch
from mirrorless.record import Record
from mirrorless.settings import ClusterSettings, FlowSettings
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, run

CLUSTER = ClusterSettings(alias="any", bootstrap="any:9092")
SETTINGS = FlowSettings(flow=str(FLOW), source=CLUSTER, target=CLUSTER)


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
    )

    found = view.inspect(InspectTask(settings=SETTINGS, topic=LANE.topic, partition=0, remote_topic="us-east.orders"))

    assert "has expired" in found.differs


@dataclass(slots=True)
class SlowLog:
    """A log of which each record takes most of a minute, and every other read fails behind two of them."""

    clock: float = 0.0
    reads: list[int] = field(default_factory=list)

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:  # noqa: ARG002  the port's
        """See `LaneLog.bounds`."""
        return OffsetRange(0, 40)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:  # noqa: ARG002  the port's
        """See `LaneLog.read`."""
        self.reads.append(wanted.first)
        for offset in range(wanted.first, wanted.next):
            self.clock += 50.0
            if deadline() <= 0 or offset == wanted.first + 2:
                raise Retriable("showed nothing in time")
            yield Chunk([Record(offset=offset, timestamp=1, headers=[])], offset + 1)


def test_a_search_for_orphans_takes_as_long_as_it_takes_and_goes_on_where_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, unread = SlowLog(), cast("Any", None)
    monkeypatch.setattr("time.monotonic", lambda: log.clock)
    view = LaneView(
        chains=MemoryChains(),
        states=MemoryLaneStates(),
        target=unread,
        source_log=log,
        target_log=unread,
        source_ends=unread,
        target_ends=unread,
        sleep=lambda _: None,
        clock=lambda: log.clock,
    )
    names = LaneNames(topic=LANE.topic, partition=0, remote="us-east.orders", generation=0)

    found = view.orphans(OrphanTask(settings=SETTINGS, names=names, position=0, until=40))

    assert found.stretches == (Stretch(0, 40, 40, 0),)
    assert log.reads == list(range(0, 40, 2))


def test_a_source_that_grows_is_left_alone_where_what_comes_would_count_as_an_orphan() -> None:
    seen = LaneInspection(topic="orders", partition=0, remote_topic="us-east.orders", source=OffsetRange(0, 10))
    reconciled = replace(seen, reconciled=True)

    assert "10, and a moment later 11" in still_written(seen, 11)
    assert not still_written(seen, 10)
    assert not still_written(reconciled, 11), "the flow goes on from the position"
    assert still_written(replace(reconciled, tail=OffsetRange(5, 6)), 11), "it would stand among the copies"
