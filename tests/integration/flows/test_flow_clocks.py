"""The environment's clock steps in the middle of a batch, or hours pass while it is frozen, and nothing comes of it."""

from __future__ import annotations

import pytest

from tests.support.flow_stage import Stage
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


def test_a_wall_clock_that_steps_an_hour_within_a_batch_loses_and_duplicates_nothing(stage: Stage) -> None:
    """Lambda's deadline is over at once; the clock stays as it is for the batches that this environment gets later."""
    order = stage.lab.faults.order("forward", "produced")
    stage.produce(60)
    stage.lab.faults.await_claimed(order, seconds=30)
    stage.await_replicated()
    stage.produce(40)
    stage.await_replicated()

    stage.verify()
    assert stage.lab.mappings.metrics(stage.uuid)["FailedInvoke"], "its deadline was over"
    stage.function.recycle()  # the next test begins with the machine's own clock


def test_hours_in_which_an_environment_was_frozen_within_a_batch_lose_and_duplicate_nothing(stage: Stage) -> None:
    """Its memory of positions and states is hours old by both clocks, and its transaction has long been aborted."""
    order = stage.lab.faults.order("freeze", "settled")
    stage.produce(60)
    stage.lab.faults.await_claimed(order, seconds=30)
    eventually(stage.lab.faults.stopped, "the environment notes its pid")
    (pid,) = stage.lab.faults.stopped()
    stage.await_zombie(pid)
    stage.await_replicated()

    stage.lab.faults.resume_stopped(pid)
    stage.await_gone(pid)
    stage.produce(40)
    stage.await_replicated()

    stage.verify()
