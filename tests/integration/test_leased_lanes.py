"""History before the first batch, and a mapping that moved on: what a lane waits for, on real clusters and DynamoDB."""

from __future__ import annotations

import time

import pytest

from mirrorless.chain.lane_state import Lease
from mirrorless.protocol.event import Batch, decode_event
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from tests.support.lane_stage import LaneStage

pytestmark = pytest.mark.integration


def test_a_lane_that_begins_with_a_backfill_waits_for_its_history_and_then_goes_on_by_itself(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic, 2)
    stage.write(*(b"%d" % number for number in range(10)), partition=0)
    stage.write(b"first of all", partition=1)
    forwarder = stage.environment(history_first=True)

    waits = stage.replicate(forwarder, stage.event(p0=[6, 7], p1=None))
    assert {place: each.upstream_offset for place, each in waits.waiting.items()} == {(stage.topic, 0): 6}
    assert stage.values(1) == [b"first of all"]  # met at offset 0, it has no history

    backfill(stage, "backfill-1", until=6)
    went_on = stage.replicate(forwarder, stage.event(p0=[6, 7]))
    assert (went_on.waiting, [(run.position, run.next) for run in went_on.runs]) == ({}, [(6, 8)])
    assert stage.orders.read([stage.lane()])[stage.lane()].waiting is None

    stage.replicate(forwarder, stage.event(p0=[8, 9]))
    stage.assert_mirrored()


def test_a_mapping_that_begins_behind_the_end_of_a_job_waits_for_another_one(stage: LaneStage) -> None:
    """Pollers that restart before their first commit begin at the end of the topic, and not where they were."""
    stage.create(stage.source, stage.topic)
    stage.write(*(b"%d" % number for number in range(10)))
    forwarder = stage.environment(history_first=True)
    take(stage, "backfill-1")
    assert stage.replicate(forwarder, stage.event(p0=[4, 5])).waiting
    backfill(stage, "backfill-1", until=4)

    moved_on = stage.replicate(forwarder, stage.event(p0=[8, 9]))
    assert moved_on.waiting[stage.topic, 0].upstream_offset == 8
    assert "`mirrorless backfill start '" in moved_on.waiting[stage.topic, 0].hint

    backfill(stage, "backfill-2", until=8)
    assert stage.replicate(forwarder, stage.event(p0=[8, 9])).waiting == {}
    stage.assert_mirrored()


def test_a_quiet_lane_of_a_job_that_was_killed_waits_for_another_one_or_the_operators_order(stage: LaneStage) -> None:
    """No batch waited while the job ran, so that nothing but its lease shows that it had not come to its end."""
    stage.create(stage.source, stage.topic)
    stage.write(*(b"%d" % number for number in range(10)))
    forwarder = stage.environment()
    for until in (0, 3):  # killed before its first chunk, and in the middle
        killed(stage, "backfill-1", until=until)
        assert stage.replicate(forwarder, stage.event(p0=[6, 7])).waiting[stage.topic, 0].upstream_offset == 6

    backfill(stage, "backfill-2", until=6)
    assert stage.replicate(forwarder, stage.event(p0=[6, 7])).waiting == {}
    killed(stage, "backfill-3", until=8)
    forwarder = stage.environment()
    assert stage.replicate(forwarder, stage.event(p0=[8])).waiting == {}  # there is no gap, and the lease is dropped
    assert stage.orders.read([stage.lane()])[stage.lane()].lease is None
    stage.replicate(forwarder, stage.event(p0=[9]))
    stage.assert_mirrored()


def take(stage: LaneStage, holder: str, *, seconds: int = 60) -> None:
    now = time.time_ns() // 1_000_000
    stage.orders.take(stage.lane(), Lease(holder=holder, until=now + seconds * 1000), now=now)


def killed(stage: LaneStage, holder: str, *, until: int) -> None:
    """What a job leaves whose driver was killed: its chunks, and a lease that ends by itself."""
    take(stage, holder, seconds=0)
    if until:
        copy(stage, holder, until=until)


def backfill(stage: LaneStage, holder: str, *, until: int) -> None:
    """What a job does: take the lane, bring what lies below an upstream offset, let go."""
    take(stage, holder)
    copy(stage, holder, until=until)
    assert stage.orders.let_go(stage.lane(), holder, position=until)


def copy(stage: LaneStage, holder: str, *, until: int) -> None:
    job: Replicator = stage.environment()
    job.holder, job.positions.holder, job.examined = holder, holder, True
    read = decode_event(stage.event(p0=range(until)))
    batch = Batch(records=read.records, covered={(stage.topic, 0): until})
    outcome: BatchOutcome = job.replicate(batch, request=holder, deadline=lambda: 15.0)
    assert outcome.waiting == {}
