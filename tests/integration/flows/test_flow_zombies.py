"""An invocation times out, its batch is delivered again, and then the first one wakes up.

The zombies of the flow back hold a transaction that is still open when they wake; the broker has ended that of the
zombies of the flow forth long before.
"""

from __future__ import annotations

import pytest

from mirrorless.steps import Step
from tests.flow_stage import Stage
from tests.readback import links

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("step", ["produced", "settled", "prepared", "committed"])
def test_a_zombie_that_wakes_with_its_transaction_open_cannot_commit_after_its_successors_run_is_prepared(
    stage_back: Stage, step: Step
) -> None:
    """E. Its successor either lies on its key of the chain, or has fenced its transactional id."""
    _outlived_by_its_successor(stage_back, step)


@pytest.mark.parametrize("step", ["settled", "prepared"])
def test_a_zombie_that_wakes_after_the_broker_ended_its_transaction_cannot_commit(stage: Stage, step: Step) -> None:
    """E, where the transaction is long gone: what it prepared names nothing that could still become visible."""
    _outlived_by_its_successor(stage, step)


@pytest.mark.parametrize("step", ["settled", "prepared"])
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


def _outlived_by_its_successor(stage: Stage, step: Step) -> None:
    stopped = stage.stop_at(step)
    stage.produce(60)
    pid = stopped()
    stage.await_zombie(pid)
    stage.await_replicated()
    successors = [_chain(stage, partition) for partition in (0, 1)]

    stage.lab.faults.resume_stopped(pid)
    stage.await_gone(pid)

    stage.verify()
    assert [_chain(stage, partition) for partition in (0, 1)] == successors, "the zombie changed the chain"


def _chain(stage: Stage, partition: int) -> list[tuple[int, int, str, str]]:
    chain = links(stage.lane(partition), stage.chains)
    return [(run.position, run.next, run.attempt, run.state) for run in chain]
