"""A job has a lane to itself beside a live mapping: the lane waits, the others go on, and both meet without a gap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.chain.lane_state import RUNNING, LaneState, Lease
from mirrorless.flow.settings import decode_settings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.protocol.event import Batch
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from tests.support.chains import every_run
from tests.support.flow_stage import Stage
from tests.support.readback import read_topic
from tests.support.tries import some_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

LEASES = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants",
    "tests/unit/protocol/test_protocol.py::test_a_dead_jobs_lease_keeps_a_lane_no_longer_than_its_term",
)

HOLDER = "backfill-1"


@pytest.mark.parametrize("flow", some_of(("stage", "stage_back"), "stage_back", others=LEASES))
def test_a_lane_that_a_job_has_waits_while_the_others_go_on_and_nothing_is_lost_or_twice(
    flow: str, request: pytest.FixtureRequest
) -> None:
    """Forth with a partial batch response; back without one, where the whole batch is delivered again."""
    stage: Stage = request.getfixturevalue(flow)
    lease(stage, seconds=600)
    stage.lab.mappings.hold(stage.uuid)
    stage.produce(60)
    stage.lab.mappings.release(stage.uuid)

    eventually(lambda: state(stage).waiting == 0, "the lane waits")
    eventually(lambda: position(stage, 1) >= 15, "the other lane goes on")
    assert state(stage).stop is None
    assert position(stage, 0) == 0

    # The job overtakes what waits, and lets go in the middle of it.
    copy(stage, 0, 10)
    assert state(stage).lease is not None
    assert stage.orders.let_go(stage.lane(0), HOLDER, position=10)
    stage.await_replicated()

    eventually(lambda: state(stage) == LaneState(begun=0), "what waited has come through")
    assert [run.examined for run in every_run(stage.chains, stage.lane(0))][:2] == [True, False]
    stage.verify()


@LEASES
def test_the_lease_of_a_job_that_died_ends_by_its_term(stage_back: Stage) -> None:
    until = lease(stage_back, seconds=3)
    stage_back.produce(20)

    stage_back.await_failed_invocation()
    stage_back.await_replicated()

    assert min(run.settled_at for run in every_run(stage_back.chains, stage_back.lane(0))) >= until
    stage_back.verify()


@LEASES
def test_a_warm_function_that_has_not_heard_of_the_lease_loses_its_race_and_waits(stage: Stage) -> None:
    """What it remembers of a lane's state may be a minute old; the chain decides."""
    stage.produce(20)
    stage.await_replicated()
    stage.lab.mappings.hold(stage.uuid)
    stage.produce(20)
    lease(stage, seconds=600)
    end = source_end(stage, 0)
    copy(stage, position(stage, 0), end)

    stage.lab.mappings.release(stage.uuid)
    eventually(lambda: state(stage).waiting is not None, "the lane waits")
    assert stage.orders.let_go(stage.lane(0), HOLDER, position=end)
    stage.await_replicated()

    stage.verify()


# A job, in this process


def lease(stage: Stage, *, seconds: int) -> int:
    """Take the first lane; until when, in ms since the epoch."""
    until = now() + seconds * 1000
    stage.orders.take(stage.lane(0), Lease(holder=HOLDER, until=until), now=now())
    return until


def copy(stage: Stage, first: int, following: int) -> None:
    """Bring upstream offsets [first, following) of the first lane over as a job does."""
    settings = decode_settings(stage.flow.function_settings_json())
    log, end = KafkaLaneLog(settings.source, flow=str(stage.flow.name)), time.monotonic() + 30
    with replicator(stage) as job:
        for chunk in log.read(stage.topic, 0, OffsetRange(first, following), lambda: end - time.monotonic()):
            batch = Batch.of_topic(stage.topic, {0: chunk.records}, {0: chunk.covered})
            outcome = job.replicate(batch, request=HOLDER, deadline=lambda: end - time.monotonic())
            assert not outcome.stopped
            assert not outcome.waiting


@contextmanager
def replicator(stage: Stage) -> Iterator[Replicator]:
    settings = decode_settings(stage.flow.function_settings_json())
    target, chains = KafkaTarget(settings, environment=uuid4().hex), stage.chains
    ledger = DynamoDbLossLedger(stage.lab.dynamodb.client(), stage.lab.tables.loss_ledger)
    yield Replicator(
        flow=settings.name,
        delivery=settings.delivery,
        remote_topic=settings.remote_topic,
        chains=chains,
        positions=Positions(chains=chains, states=stage.orders, target=target, clock=now),
        ledger=ledger,
        target=target,
        source=KafkaSource(settings),
        clock=now,
        new_id=lambda: uuid4().hex,
        holder=HOLDER,
        examined=True,
    )
    target.discard_writers()


def state(stage: Stage) -> LaneState:
    return stage.orders.read([stage.lane(0)]).get(stage.lane(0), RUNNING)


def position(stage: Stage, partition: int) -> int:
    lane = stage.lane(partition)
    return stage.chains.heads([lane])[lane].position


def source_end(stage: Stage, partition: int) -> int:
    """Behind the last record that readers see."""
    return read_topic(stage.source, stage.topic)[partition][-1].offset + 1


def now() -> int:
    return time.time_ns() // 1_000_000
