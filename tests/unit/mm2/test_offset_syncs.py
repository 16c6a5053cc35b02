"""Offset syncs for MM2's tools: the last record of each lane that moved, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import Run
from mirrorless.errors import Retriable
from mirrorless.mm2.internal_records import OffsetSync
from mirrorless.mm2.offset_syncs import OffsetSyncs
from mirrorless.protocol.map_reads import MapReads
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope
from tests.support.chains import reset, run
from tests.support.group_cluster import TwoClusters, settings


@dataclass
class Syncing:
    """The task of another flow's clusters."""

    world: TwoClusters = field(default_factory=lambda: TwoClusters(settings()))
    partitions: Mapping[str, int] = field(default_factory=lambda: {"orders": 2, "payments": 1})

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another environment."""
        self.task = OffsetSyncs(
            scope=FlowScope.of(self.world.settings),
            partitions=lambda _deadline: self.partitions,
            target=self.world.target_topics,
            chains=MapReads(chains=self.world.chains, stops=self.world.states.read),
            documents=self.world.documents,
            replication_factor=2,
            clock=lambda: self.world.now,
        )

    def act(self) -> int:
        """One round; how many syncs were emitted."""
        report = RoundReport()
        self.task.act(report, lambda: 60.0)
        return report.counts["offset-syncs-emitted"]

    def found(self) -> list[tuple[str, int, int, int]]:
        """What stands in the topic."""
        decoded = [OffsetSync.decode(key, value) for _, key, value, _ in self.world.target_topics.written]
        return [(each.topic, each.partition, each.upstream, each.downstream) for each in decoded]


def test_each_lane_that_moved_gets_an_offset_sync_of_its_last_record_once_whatever_environment_looks() -> None:
    syncing = Syncing()
    world = syncing.world
    for lane in (world.lane(0), world.lane(1), world.lane(topic="payments")):
        world.produce(lane, -3)
    world.replicate(world.lane(0))
    world.replicate(world.lane(topic="payments"))

    assert [syncing.act(), syncing.act()] == [2, 0]
    world.replicate(world.lane(1), 2)
    assert [syncing.act(), syncing.act()] == [1, 0]
    syncing.restart()
    assert syncing.act() == 0

    assert syncing.found() == [("orders", 0, 2, 2), ("payments", 0, 2, 2), ("orders", 1, 1, 1)]
    assert {topic for topic, *_ in world.target_topics.written} == {"mm2-offset-syncs.us-east.internal"}


def test_only_the_documents_of_topics_that_moved_are_written() -> None:
    syncing = Syncing()
    world = syncing.world
    for lane in (world.lane(), world.lane(topic="payments")):
        world.produce(lane, -3)
        world.replicate(lane, 1)
    syncing.act()
    before = world.documents.writes
    world.replicate(world.lane(topic="payments"), 2)
    syncing.act()

    assert world.documents.writes == before + 1
    assert list(world.documents.read(world.settings.name, "offset-syncs")) == [
        "offset-syncs/orders",
        "offset-syncs/payments",
    ]


def test_a_run_in_doubt_gets_its_offset_sync_once_it_is_confirmed_and_one_that_was_refused_in_the_next_round() -> None:
    """The remote partition grows no more when the run is confirmed, so growth alone must not decide."""
    syncing = Syncing()
    world = syncing.world
    world.produce(world.lane(), -3)
    world.replicate(world.lane(), prepared=True)
    assert syncing.act() == 0

    world.chains.confirm([link for link in world.chains.of(world.lane()) if isinstance(link, Run)])
    world.target_topics.refuses = True
    with pytest.raises(Retriable):
        syncing.act()
    world.target_topics.refuses = False

    assert syncing.act() == 1


def test_a_lane_whose_map_is_not_true_gets_no_offset_sync_until_it_is_reset() -> None:
    syncing = Syncing()
    world = syncing.world
    for lane in (world.lane(0), world.lane(1)):
        world.produce(lane, -3)
        world.replicate(lane)
    world.states.stop(world.lane(), Stop(reason="broken", upstream_offset=0, detail="", at=1, untrue_from=0))

    assert syncing.act() == 1
    assert [partition for _, partition, *_ in syncing.found()] == [1]

    world.chains.reset(reset(3, 0))
    world.states.resume(world.lane())
    world.target_log(world.lane()).extend([0, 1, 2])
    world.chains.prepare([run(0, 3, (0, 4, 3), generation=1)])
    assert syncing.act() == 1
