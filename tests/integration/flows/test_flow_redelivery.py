"""The mapping delivers records again: twice, in other batches, after a lost acknowledgement or a rebalance."""

from __future__ import annotations

import pytest

from tests.support.flow_stage import Stage
from tests.support.tries import some_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants",
)


def test_a_batch_delivered_twice_is_replicated_once(stage: Stage) -> None:
    """B: the second delivery lies below the position, and is dropped."""
    stage.lab.mappings.hold(stage.uuid)
    stage.produce(60)
    stage.lab.mappings.duplicate_batch(stage.uuid)
    stage.lab.mappings.release(stage.uuid)

    stage.await_replicated()

    assert stage.metric("Invoked") > 60
    stage.verify()


@pytest.mark.parametrize("flow", some_of(("stage", "stage_back"), "stage", others=HELD))
def test_a_batch_delivered_twice_at_once_is_replicated_by_whoever_prepares_first(
    flow: str, request: pytest.FixtureRequest
) -> None:
    """A, C: two environments produce the same records in two transactions; one of them aborts.

    The first to settle is stopped there until its rival has committed. It then finds its key of the chain taken.
    """
    stage: Stage = request.getfixturevalue(flow)
    stage.lab.mappings.hold(stage.uuid)
    stage.produce(60)
    if len(stage.function.environments) < 2:
        stage.function.initialise()  # a cold start would be too late for the race
    stopped = stage.stop_at("settled")
    rival = stage.lab.faults.order("stop", "confirmed")
    stage.lab.mappings.duplicate_batch(stage.uuid, concurrently=True)
    stage.lab.mappings.release(stage.uuid)

    first = stopped()
    stage.lab.faults.await_claimed(rival, seconds=120)
    stage.lab.faults.resume_stopped(first)
    eventually(lambda: stage.environment(first) is None or _idle(stage, first), "the loser answers")
    for pid in stage.lab.faults.stopped():
        stage.lab.faults.resume_stopped(pid)
    stage.await_replicated()

    assert stage.metric("Invoked") > 60
    stage.verify()


@HELD
def test_records_redelivered_in_other_batches_are_replicated_once(stage: Stage) -> None:
    """B, C: where a batch begins and ends means nothing; the chain knows every single offset.

    The poller dies between the function's success and its commit, and the mapping then has batches of seven.
    """
    stage.lab.mappings.hold(stage.uuid)
    stage.produce(60)
    stage.lab.mappings.lose_ack(stage.uuid)
    stopped = stage.stop_at("position")
    stage.lab.mappings.release(stage.uuid)
    pid = stopped()
    stage.lab.mappings.hold(stage.uuid)  # so that the new session waits for the new batch size
    stage.lab.faults.resume_stopped(pid)
    eventually(lambda: _idle(stage, pid), "the batch is done")

    stage.lab.mappings.update(stage.uuid, BatchSize=7)
    stage.lab.mappings.wait_enabled(stage.uuid)
    assert not stage.lab.mappings.committed(stage.uuid), "the acknowledgement was not lost"
    stage.lab.mappings.release(stage.uuid)
    stage.produce(30)
    stage.await_replicated()

    assert stage.metric("Invoked") > 60 + 30  # the first batch may have held only the first of the transactions
    stage.verify()


@pytest.mark.soak(
    "tests/integration/test_lab_mappings.py::test_a_failed_commit_is_repeated_where_no_record_follows",
    "tests/integration/flows/test_flow_redelivery.py::test_a_batch_delivered_twice_is_replicated_once",
)
def test_a_failed_commit_of_the_groups_offsets_changes_nothing_on_the_target(stage: Stage) -> None:
    """B: the position is the chain's, not the consumer group's."""
    stage.lab.mappings.commit_failure(stage.uuid)
    stage.produce(30)
    eventually(lambda: stage.metric("CommitError"), "a commit fails")
    stage.produce(30)

    stage.await_replicated()

    stage.verify()


def test_a_rebalance_in_the_middle_of_a_batch_makes_its_invocation_a_zombie_and_nothing_worse(stage: Stage) -> None:
    """E: the poller that has the partitions now invokes with the same records while the first is still at work."""
    stage.produce(20)
    stage.await_replicated()
    stopped = stage.stop_at("settled")
    stage.produce(40)
    pid = stopped()

    stage.lab.mappings.rebalance(stage.uuid)
    stage.lab.faults.resume_stopped(pid)
    stage.await_replicated()

    stage.verify()


def _idle(stage: Stage, pid: int) -> bool:
    environment = stage.environment(pid)
    return environment is not None and environment.state == "idle"
