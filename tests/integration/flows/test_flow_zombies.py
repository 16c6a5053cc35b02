"""An invocation times out, its batch is delivered again, and then the first one wakes up.

The zombies of the flow back hold a transaction that is still open when they wake; the broker has ended that of the
zombies of the flow forth long before.
"""

from __future__ import annotations

import pytest

from mirrorless.protocol.hooks import Step
from tests.support.flow_stage import PARTITIONS, Stage
from tests.support.readback import await_settled, links, unsettled
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

HELD = pytest.mark.soak(
    "tests/unit/protocol/test_invariants.py::test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants"
)


@pytest.mark.parametrize("step", some_of(("produced", "settled"), "settled", others=HELD))
def test_a_zombie_that_resumes_with_its_transaction_open_cannot_commit_after_its_successors_run_is_prepared(
    stage_back: Stage, step: Step
) -> None:
    """E. Its successor's runs stand at the keys of the chain under which it would have to prepare its own."""
    pid = _outlived_by_its_successor(stage_back, step)
    assert unsettled(stage_back.target, stage_back.remote_topic), "its transaction was to be open still"

    _wake(stage_back, pid)


@pytest.mark.parametrize("step", some_of(("prepared", "committed"), "prepared", others=HELD))
def test_a_zombie_whose_run_was_in_doubt_resumes_to_find_it_settled(stage_back: Stage, step: Step) -> None:
    """E. Its successor could not prepare before it had fenced it and asked the target what became of the run."""
    pid = _outlived_by_its_successor(stage_back, step)
    assert not unsettled(stage_back.target, stage_back.remote_topic), "fencing was to end its transaction"

    _wake(stage_back, pid)


@pytest.mark.parametrize("step", some_of(("settled", "prepared"), "prepared", others=HELD))
def test_a_zombie_that_resumes_after_the_broker_ended_its_transaction_cannot_commit(stage: Stage, step: Step) -> None:
    """E, where the transaction is long gone: what it prepared names nothing that could still become visible."""
    pid = _outlived_by_its_successor(stage, step)
    await_settled(stage.target, stage.remote_topic)

    _wake(stage, pid)


@pytest.mark.parametrize("step", some_of(("settled", "prepared"), "prepared", others=HELD))
def test_a_zombie_that_races_its_successor_commits_or_is_fenced_and_never_both(stage_back: Stage, step: Step) -> None:
    """E. It wakes the moment its invocation has timed out: who is first is open, that there is one record is not."""
    stopped = stage_back.stop_at(step)
    stage_back.produce(60)
    pid = stopped()
    stage_back.await_zombie(pid)

    stage_back.lab.faults.resume_stopped(pid)
    stage_back.await_gone(pid)
    stage_back.await_replicated()

    stage_back.verify()


def _outlived_by_its_successor(stage: Stage, step: Step) -> int:
    """An environment that stopped at a step, timed out, and whose whole batch another one has replicated since."""
    stopped = stage.stop_at(step)
    stage.produce(60)
    pid = stopped()
    stage.await_zombie(pid)
    stage.await_replicated()
    return pid


def _wake(stage: Stage, pid: int) -> None:
    """Let a zombie run to its end: everything must stay as its successor left it."""
    successors = _chain(stage)

    stage.lab.faults.resume_stopped(pid)
    stage.await_gone(pid)

    stage.verify()
    assert _chain(stage) == successors, "the zombie changed the chain"


def _chain(stage: Stage) -> list[tuple[int, int, str, str]]:
    runs = [run for partition in range(PARTITIONS) for run in links(stage.lane(partition), stage.chains)]
    assert runs
    return [(run.position, run.next, run.attempt, run.state) for run in runs]
